"""The peers in the order of the tables, DriftQ first."""

from __future__ import annotations

from bench.peers.beanstalkd import BeanstalkdClient, BeanstalkdPeer
from bench.peers.driftq import DriftQClient, DriftQPeer
from bench.peers.jetstream import JetStreamClient, JetStreamPeer
from bench.peers.peer import Peer, PeerClient
from bench.peers.postgres import PostgresClient, PostgresPeer
from bench.peers.rabbitmq import RabbitClient, RabbitPeer
from bench.peers.redis_streams import RedisClient, RedisPeer
from bench.peers.reference_streams import ReferenceStreamsClient, ReferenceStreamsPeer

PEERS: dict[str, tuple[type[Peer], type[PeerClient]]] = {
    peer.name: (peer, client)
    for peer, client in (
        (DriftQPeer, DriftQClient),
        (RedisPeer, RedisClient),
        (PostgresPeer, PostgresClient),
        (JetStreamPeer, JetStreamClient),
        (RabbitPeer, RabbitClient),
        (BeanstalkdPeer, BeanstalkdClient),
        (ReferenceStreamsPeer, ReferenceStreamsClient),
    )
}
