"""A conformance kit: checks, over HTTP alone, that a server keeps the contract. `conformance` says how it is run.

It needs httpx and pytest, and no Django: it is for any server, in any language, that speaks this interface.
"""
