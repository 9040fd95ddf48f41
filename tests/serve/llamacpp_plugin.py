"""pytest plugin for llama.cpp's server tests: they download nothing, give up after a while, and send
as fields what llama-server has as options.
"""

import requests
import utils  # a module of llama.cpp's tests

HANG = 120
LENGTHS = ("n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
# routes whose answers --n-predict limits
GENERATING = ("/completion", "/completions", "/v1/completions", "/infill")
CHATS = ("/chat/completions", "/v1/chat/completions")

utils.ServerPreset.load_all = staticmethod(lambda: None)
send = requests.Session.request


def bounded(self, *args, **options):
    options["timeout"] = min(options.get("timeout") or HANG, HANG)
    return send(self, *args, **options)


def with_options(method):
    """The fields of the options --seed, --temp, --n-predict and --verbose."""

    def call(self, verb, path, data=None, *args, **options):
        if isinstance(data, dict) and path in (*GENERATING, *CHATS):
            data = dict(data)
            data.setdefault("seed", self.seed)
            data.setdefault("temperature", self.temperature)
            if (self.n_predict or 0) > 0 and not any(n in data for n in LENGTHS):
                data["n_predict"] = self.n_predict
            if self.debug and path in CHATS:
                data.setdefault("verbose", True)
        return method(self, verb, path, data, *args, **options)

    return call


for name in ("make_request", "make_stream_request"):
    setattr(utils.ServerProcess, name, with_options(getattr(utils.ServerProcess, name)))
requests.Session.request = bounded
