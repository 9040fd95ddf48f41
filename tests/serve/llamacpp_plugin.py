"""pytest plugin for llama.cpp's server tests: they run llmc serve under OpenAI's paths and the served
model's name, download nothing, and give up after a while.
"""

import requests
import utils  # a module of llama.cpp's tests

PATHS = {"/chat/completions": "/v1/chat/completions", "/responses": "/v1/responses"}
HANG = 120

utils.ServerPreset.load_all = staticmethod(lambda: None)
make_url = utils.ServerProcess.make_url
send = requests.Session.request


def openais_path(self, path, *args):
    return make_url(self, PATHS.get(path, path), *args)


def bounded(self, *args, **options):
    options["timeout"] = min(options.get("timeout") or HANG, HANG)
    return send(self, *args, **options)


def with_served_model(method):
    """llama-server answers to any name of a model."""

    def call(self, verb, path, data=None, *args, **options):
        if isinstance(data, dict) and "model" in data and self.model_alias:
            data = {**data, "model": self.model_alias.split(",")[0]}
        return method(self, verb, path, data, *args, **options)

    return call


for name in ("make_request", "make_stream_request"):
    setattr(utils.ServerProcess, name, with_served_model(getattr(utils.ServerProcess, name)))
utils.ServerProcess.make_url = openais_path
requests.Session.request = bounded
