"""The API described: `shapes` are the bodies of answers, `operations` what each route takes and gives, `openapi` the
document made from them, `page` the document for people."""
