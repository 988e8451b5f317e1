"""The server over HTTP, on a port of this machine."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection

import numpy as np
import pytest

from tests.llm.folders import bert, llama
from tilewright.base.errors import ExecutionError, InputError, UnsupportedError

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tilewright.llm.serve import guard, server

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
CLIENTS, CONTEXT, TOKENS = 2, 48, 30


class Server:
    """A server in a thread. ask: (status, the JSON of the answer)."""

    def __init__(self, service):
        self.service = service
        self.socket = server._bound("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.running = server.server_of(service)
        run = {"sockets": [self.socket]}
        self.thread = threading.Thread(target=self.running.run, kwargs=run)
        self.thread.start()
        while not self.running.started:
            time.sleep(0.01)

    def close(self):
        self.running.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.socket.close()

    def connection(self, path, body, **headers):
        method = "GET" if body is None else "POST"
        made = HTTPConnection("127.0.0.1", self.port, timeout=20)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        kind = {"Content-Type": "application/json"}
        made.request(method, path, data, kind | headers)
        return made

    def ask(self, path, body=None, **headers):
        connection = self.connection(path, body, **headers)
        found = connection.getresponse()
        data = found.read()
        connection.close()
        return found.status, json.loads(data)

    def events(self, path, body):
        connection = self.connection(path, {**body, "stream": True})
        found = connection.getresponse()
        assert found.status == 200
        assert found.headers["Content-Type"].startswith("text/event-stream")
        lines = found.read().decode().split("\n\n")
        connection.close()
        assert lines.pop() == ""
        return [line.removeprefix("data: ") for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = llama(tmp_path_factory.mktemp("models") / "tiny").write()
    (made.path / "chat_template.jinja").write_text(TEMPLATE)
    return made.path


@pytest.fixture(scope="module")
def service(folder):
    options = {"context": CONTEXT, "chunks": (8,), "threads": 1}
    return server.make(folder, None, CLIENTS, TOKENS, options)


@contextmanager
def served(service):
    made = Server(service)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def there(service):
    with served(service) as made:
        yield made


@pytest.fixture(scope="module")
def model(service):
    return service.engine.model


def text(model, prompt, **options):
    return "".join(map(str, model.generate(prompt, **options)))


ASK = {"model": "tiny", "prompt": "abcab", "temperature": 0, "max_tokens": 9}


def test_a_completion_is_what_the_model_generates(there, model):
    status, found = there.ask("/v1/completions", ASK)
    tokens = list(model.generate("abcab", max_tokens=9))
    assert status == 200
    assert found["object"] == "text_completion"
    assert found["model"] == "tiny"
    [choice] = found["choices"]
    assert choice["text"] == "".join(map(str, tokens))
    assert choice["finish_reason"] == "length"
    read = len(model.encode("abcab"))
    assert found["usage"] == {
        "prompt_tokens": read,
        "completion_tokens": 9,
        "total_tokens": read + 9,
    }


def test_prompts_may_be_ids_or_a_list_of_one(there, model):
    for prompt in ([5, 6, 7], ["abcab"]):
        status, found = there.ask("/v1/completions", {**ASK, "prompt": prompt})
        one = prompt if prompt[0] == 5 else prompt[0]
        assert status == 200
        assert found["choices"][0]["text"] == text(model, one, max_tokens=9)


def test_a_stream_has_the_same_text_in_pieces(there, model):
    more = {"stream_options": {"include_usage": True}}
    *events, usage, done = there.events("/v1/completions", ASK | more)
    found = [json.loads(event)["choices"][0] for event in events]
    assert "".join(c["text"] for c in found) == text(model, "abcab", max_tokens=9)
    assert [c["finish_reason"] for c in found] == [None] * (len(found) - 1) + ["length"]
    assert len(found) > 1
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"]["completion_tokens"] == 9
    assert done == "[DONE]"
    assert len(there.events("/v1/completions", ASK)) == len(events) + 1


def test_a_chat_goes_through_the_template(there, model):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "c"}, {"role": "user", "content": parts}]
    body = {"model": "tiny", "messages": messages, "temperature": 0}
    ids = model.tokenizer.encode("system:c;user:ab;", special=False)
    wanted = text(model, ids, max_tokens=TOKENS)
    status, found = there.ask("/v1/chat/completions", body)
    assert status == 200
    message = found["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", wanted)
    assert found["usage"]["prompt_tokens"] == len(ids)
    body |= {"max_completion_tokens": 4}
    *events, _ = there.events("/v1/chat/completions", body)
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    joined = "".join(delta["content"] for delta in deltas)
    assert joined == text(model, ids, max_tokens=4)


def test_a_stop_text_is_left_out(there, model):
    whole = text(model, "abcab", max_tokens=9)
    stop = whole[4:6]
    status, found = there.ask("/v1/completions", {**ASK, "stop": [stop]})
    assert status == 200
    assert found["choices"][0]["text"] == whole[: whole.index(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"


def test_equal_seeds_give_equal_texts_and_none_a_fresh_one(there):
    drawn = {**ASK, "temperature": 1.5, "max_tokens": 20}

    def found(**more):
        _, answer = there.ask("/v1/completions", drawn | more)
        return answer["choices"][0]["text"]

    assert found(seed=-3, top_p=0.9) == found(seed=-3, top_p=0.9)
    assert found(seed=1) != found(seed=2)
    assert found() != found()


def test_four_clients_get_what_each_gets_alone(there, model):
    prompts = ["a", "abcabcabc", "xyz" * 6, "q"]
    lengths = [20, 4, 12, 9]

    def one(prompt, most):
        body = {**ASK, "prompt": prompt, "max_tokens": most}
        return there.ask("/v1/completions", body)

    with ThreadPoolExecutor(4) as clients:
        found = list(clients.map(one, prompts, lengths))
    for prompt, most, (status, answer) in zip(prompts, lengths, found, strict=True):
        assert status == 200
        assert answer["choices"][0]["text"] == text(model, prompt, max_tokens=most)


@contextmanager
def slowly(service, monkeypatch):
    """Steps that wait until they are let go, so that a client can leave before."""
    batch, go = service.engine._batch, threading.Event()
    step = type(batch).step

    def waiting(self):
        assert go.wait(20)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(type(batch), "step", waiting)
        try:
            yield go
        finally:
            go.set()


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(there, service, monkeypatch, stream):
    counts = lambda: service.engine.counts  # noqa: E731
    idle = {"active": 0, "waiting": 0}
    until(lambda: counts() == idle)
    taken = []
    take = type(service.engine._batch).take
    counting = staticmethod(lambda *a: taken.append(1) or take(*a))
    monkeypatch.setattr(type(service.engine._batch), "take", counting)
    with slowly(service, monkeypatch):
        body = {**ASK, "max_tokens": TOKENS, "stream": stream}
        connection = there.connection("/v1/completions", body)
        until(lambda: counts()["active"] == 1)
        connection.close()
        [request] = service.engine._active
        until(lambda: request.cancelled)
    until(lambda: counts() == idle)
    assert len(taken) == 1  # of the step that was under way


def test_a_full_queue_is_said(there, service, monkeypatch):
    monkeypatch.setattr(service.engine, "_most", 0)
    with slowly(service, monkeypatch):
        long = {**ASK, "max_tokens": TOKENS}
        held = [there.connection("/v1/completions", long) for _ in range(CLIENTS)]
        until(lambda: sum(service.engine.counts.values()) == CLIENTS)
        status, found = there.ask("/v1/completions", ASK)
        assert (status, found["error"]["code"]) == (503, "server_busy")
        assert there.ask("/health")[1]["active"] > 0
    for connection in held:
        assert connection.getresponse().status == 200
        connection.close()


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
REFUSED = [
    ({**ASK, "n": 2}, 400, "n", "n=2"),
    ({**ASK, "n": True}, 400, "n", "n=True"),
    ({**ASK, "logprobs": 3}, 400, "logprobs", "logprobs=3"),
    ({**ASK, "echo": True}, 400, "echo", "echo=True"),
    ({**ASK, "best": 1}, 400, "best", "unknown field"),
    ({**ASK, "model": "large"}, 404, "model", "no model 'large'"),
    ({**ASK, "temperature": "1"}, 400, "temperature", "number"),
    ({**ASK, "temperature": 2.5}, 400, "temperature", "less than"),
    ({**ASK, "top_p": 0}, 400, "top_p", "greater than 0"),
    ({**ASK, "max_tokens": 0}, 400, "max_tokens", "greater than"),
    ({**ASK, "max_tokens": TOKENS + 1}, 400, "max_tokens", f"at most {TOKENS}"),
    ({**ASK, "stop": ""}, 400, None, "empty"),
    ({**ASK, "stop": list("abcde")}, 400, "stop", "at most 4"),
    ({**ASK, "prompt": []}, 400, None, "prompt is empty"),
    ({**ASK, "prompt": ["a", "b"]}, 400, "prompt", "2 texts"),
    ({**ASK, "prompt": [1, 100_000]}, 400, None, "no token 100000"),
    ({**ASK, "prompt": "a b " * 50}, 400, None, f"the context of {CONTEXT}"),
    ({**ASK, "prompt": 5}, 400, "prompt", "list of one text, got a number"),
    ({**ASK, "prompt": {"a": 1}}, 400, "prompt", "got a map"),
    ({**ASK, "prompt": None}, 400, "prompt", "got null"),
    ({**ASK, "prompt": ["a", 1]}, 400, "prompt", "got a list of numbers and texts"),
    ({**ASK, "max_token": 5}, 400, "max_token", "did you mean 'max_tokens'?"),
    ({**ASK, "stop": 5}, 400, "stop", "list of up to 4 texts, got a number"),
    ({"model": "tiny"}, 400, "prompt", "required"),
    ([], 400, None, "dictionary"),
    (b"{", 400, None, "JSON"),
    (b"[" * 100_000, 400, None, ""),
]
REFUSED_CHATS = [
    ({**CHAT, "messages": []}, 400, "messages", "at least 1"),
    (
        {**CHAT, "messages": [{"role": "user", "content": 5}]},
        400,
        "messages",
        "a number",
    ),
    ({**CHAT, "messages": IMAGE}, 400, "messages", "text"),
    ({**CHAT, "tools": [{}]}, 400, "tools", "not supported"),
    ({**CHAT, "response_format": {"type": "json_object"}}, 400, "response_format", ""),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "said"),
    [
        *(("/v1/completions", *case) for case in REFUSED),
        *(("/v1/chat/completions", *case) for case in REFUSED_CHATS),
        (
            "/v1/embeddings",
            {"model": "tiny", "input": "a"},
            400,
            "model",
            "not vectors",
        ),
        ("/v1/models/large", None, 404, "model", "no model"),
        ("/v1/nothing", None, 404, None, "Not Found"),
        ("/v1/completions", None, 405, None, "Method Not Allowed"),
    ],
)
def test_what_is_not_done_is_refused_by_name(there, path, body, status, param, said):
    found, answer = there.ask(path, body)
    error = answer["error"]
    assert (found, error["param"]) == (status, param), error
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"
    assert there.service.engine.counts == {"active": 0, "waiting": 0}


def test_fields_that_change_nothing_are_taken(there):
    more = {"n": 1, "user": "me", "logit_bias": {}, "presence_penalty": 0, "echo": None}
    assert there.ask("/v1/completions", ASK | more)[0] == 200


def test_a_large_body_is_refused_before_it_is_read(there, monkeypatch):
    monkeypatch.setattr(guard, "BODY_BYTES", 200)
    status, found = there.ask("/v1/completions", {**ASK, "prompt": "a" * 200})
    assert (status, found["error"]["message"]) == (413, "a body has at most 200 bytes")
    with socket.create_connection(("127.0.0.1", there.port)) as made:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        chunk = b"%x\r\n%s\r\n" % (300, b"a" * 300)
        made.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
        assert made.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_is_refused(there, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", there.port)) as made:
        made.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        made.settimeout(20)
        assert made.recv(100).startswith(b"HTTP/1.1 408 ")


def test_an_error_while_answering_is_an_event(there, monkeypatch):
    count = iter(range(100))
    take = type(there.service.engine._batch).take

    def failing(text, logits):
        if next(count) == 2:
            raise ExecutionError("the logits are not finite", where="/a/path")
        return take(text, logits)

    monkeypatch.setattr(
        type(there.service.engine._batch), "take", staticmethod(failing)
    )
    events = there.events("/v1/completions", {**ASK, "prompt": [5, 6]})
    error = json.loads(events[-1])["error"]
    assert error["message"] == "the logits are not finite"
    assert (error["type"], error["code"]) == ("server_error", "TW-EXECUTION")
    assert len(events) > 1


def test_models_are_listed(there):
    assert [m["id"] for m in there.ask("/v1/models")[1]["data"]] == ["tiny"]
    assert there.ask("/v1/models/tiny")[1]["object"] == "model"


def test_with_a_key_only_health_is_open(service):
    service = replace(service, engine=None, key="a-secret-key", hosts=["127.0.0.1"])
    with served(service) as made:
        assert made.ask("/health")[0] == 200
        for headers in ({}, {"Authorization": "Bearer a-secret-kex"}):
            status, found = made.ask("/v1/models", **headers)
            assert (status, found["error"]["code"]) == (401, "invalid_api_key")
        right = {"Authorization": "Bearer a-secret-key"}
        assert made.ask("/v1/models", **right)[0] == 200
        connection = made.connection("/health", None, Host="a.page.elsewhere")
        assert connection.getresponse().status == 400
        connection.close()


def test_vectors_are_those_of_the_embedder(tmp_path):
    folder = bert(tmp_path / "vectors").write().path
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    service = server.make(folder, None, 1, 9, {"threads": 1})
    wanted = service.embedder(["abc", "x"])
    body = {"model": "vectors", "input": ["abc", "x"]}
    with served(service) as made:
        status, found = made.ask("/v1/embeddings", body)
        assert status == 200
        vectors = [entry["embedding"] for entry in found["data"]]
        np.testing.assert_array_equal(np.array(vectors, np.float32), wanted)
        count = sum(len(service.embedder.ids(t)) for t in body["input"])
        assert found["usage"] == {"prompt_tokens": count, "total_tokens": count}
        packed = {**body, "input": "x", "encoding_format": "base64"}
        [entry] = made.ask("/v1/embeddings", packed)[1]["data"]
        one = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        np.testing.assert_array_equal(one, wanted[1])
        for more, said in (
            ({"dimensions": 8}, "dimensions=8"),
            ({"input": []}, "at least 1"),
            ({"input": "a" * 500}, "tokens: the model takes"),
        ):
            status, found = made.ask("/v1/embeddings", body | more)
            assert status == 400
            assert said in found["error"]["message"]
        status, found = made.ask("/v1/completions", {**ASK, "model": "vectors"})
        assert "use /v1/embeddings" in found["error"]["message"]
    for name, value in {"precision": "int4", "context": 8, "group": 16}.items():
        with pytest.raises(InputError, match=f"{name}={value!r} for an encoder"):
            server.make(folder, None, 1, 9, {name: value})
    with pytest.raises(InputError, match="there is no option 'flavor'"):
        server.make(folder, None, 1, 9, {"flavor": "sweet"})


def test_without_a_template_there_is_no_chat(tmp_path, service):
    folder = llama(tmp_path / "plain").write().path
    options = {"context": 16, "chunks": (), "threads": 1}
    made = server.make(folder, None, 1, 9, options)
    with served(made) as there:
        found = there.ask("/v1/chat/completions", {**CHAT, "model": "plain"})
    assert found[0] == 400
    assert "has no chat template" in found[1]["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "::", "example.org"])
def test_beyond_this_machine_a_key_is_needed(host):
    with pytest.raises(InputError, match="not a loopback address, and no key is set"):
        server.expect_safe(host, None)
    server.expect_safe(host, "a-secret-key")


@pytest.mark.parametrize("key", ["", "short", "a-secret-\n", "geheimnis-ü"])
def test_keys_that_are_none_are_refused(key):
    with pytest.raises(InputError, match="shorter than 8 characters"):
        server.expect_safe("127.0.0.1", key)


def test_a_port_that_is_taken_is_said(there, folder):
    with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1:{there.port}"):
        server.serve(folder, print, "127.0.0.1", there.port)


def test_missing_packages_are_named(folder, monkeypatch):
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs the packages fastapi and uvi"):
        server.serve(folder, print)
