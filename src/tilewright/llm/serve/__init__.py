"""A server of language models that speaks OpenAI's protocol over HTTP.

engine: the thread that decodes for all clients. protocol: what requests and answers look like.
guard: keys and sizes, before a request is read. app: the routes. server: a process of it.
"""

from __future__ import annotations
