/* Reads settings of downloads from the environment variables of huggingface_hub and curl. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/text.h"
#include "hub/hub.h"

static const char *
variable(const char *name)
{
	const char *s = getenv(name);

	return s && *s ? s : NULL;
}

static bool
is_true(const char *s)
{
	return s && (!strcasecmp(s, "1") || !strcasecmp(s, "on") || !strcasecmp(s, "yes") ||
	             !strcasecmp(s, "true"));
}

/* Expand ~ at the beginning of a path, as Python's expanduser does. */
static const char *
expand_home(const char *path, Arena *a)
{
	const char *home = variable("HOME");

	if (home && path[0] == '~' && (path[1] == '/' || !path[1]))
		return arena_printf(a, "%s%s", home, path + 1);
	return path;
}

/* Return the folder of Hugging Face: $HF_HOME, $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface;
 * NULL: no home folder. */
static const char *
hf_home(Arena *a)
{
	const char *own = variable("HF_HOME"), *xdg = variable("XDG_CACHE_HOME"),
	           *home = variable("HOME");

	if (own)
		return expand_home(own, a);
	if (xdg)
		return arena_printf(a, "%s/huggingface", expand_home(xdg, a));
	return home ? arena_printf(a, "%s/.cache/huggingface", home) : NULL;
}

static const char *
without_slash(const char *s, Arena *a)
{
	size_t n = strlen(s);

	while (n > 1 && s[n - 1] == '/')
		n--;
	return arena_strndup(a, s, n);
}

/* Read the token from its variable, else from its file. */
static llmc_status
read_token(HubConfig *c, const char *home, Arena *a, llmc_error *err)
{
	enum { MAX_TOKEN_BYTES = 8192 };
	const char *token = variable("HF_TOKEN"), *path = variable("HF_TOKEN_PATH");

	c->token_from = "HF_TOKEN";
	if (!token && (token = variable("HUGGING_FACE_HUB_TOKEN")))
		c->token_from = "HUGGING_FACE_HUB_TOKEN";
	if (!token && !is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
		path = path   ? expand_home(path, a)
		       : home ? arena_printf(a, "%s/token", home)
		              : NULL;
		Strbuf *text = arena_strbuf(a);
		if (path && file_exists(path) &&
		    file_read(path, MAX_TOKEN_BYTES, text, NULL) == LLMC_OK)
			token = strbuf_str(text);
		c->token_from = path;
	}
	if (!token)
		return LLMC_OK;
	token += strspn(token, " \t\r\n");
	size_t n = strlen(token);
	while (n > 0 && strchr(" \t\r\n", token[n - 1]))
		n--;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)token[i] <= 0x20 || (unsigned char)token[i] >= 0x7f)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: not an access token: it contains spaces or "
			                 "characters that are not ASCII",
			                 c->token_from);
	c->token = n ? arena_strndup(a, token, n) : NULL;
	return LLMC_OK;
}

static llmc_status
read_stall(HubConfig *c, llmc_error *err)
{
	const char *s = variable("HF_HUB_DOWNLOAD_TIMEOUT");
	char *end;

	c->stall_s = 30;
	if (!s)
		return LLMC_OK;
	c->stall_s = strtol(s, &end, 10);
	if (*end || c->stall_s < 1 || c->stall_s > 86400)
		return error_set(err, LLMC_E_INPUT,
		                 "HF_HUB_DOWNLOAD_TIMEOUT=%s: expected seconds, 1 to 86400", s);
	return LLMC_OK;
}

/* Set c->cache and c->downloads. */
static llmc_status
read_folders(HubConfig *c, const char *home, Arena *a, llmc_error *err)
{
	const char *cache = variable("HF_HUB_CACHE");
	Strbuf *own = arena_strbuf(a);

	cache = cache ? cache : variable("HUGGINGFACE_HUB_CACHE");
	if (!cache && !home)
		return error_set(err, LLMC_E_IO,
		                 "no home folder for downloaded models: set HOME or HF_HOME");
	c->cache =
	    without_slash(cache ? expand_home(cache, a) : arena_printf(a, "%s/hub", home), a);
	TRY(file_cache_dir(own, err));
	c->downloads = arena_printf(a, "%s/downloads", strbuf_str(own));
	return LLMC_OK;
}

llmc_status
hub_config_read(HubConfig *c, Arena *a, llmc_error *err)
{
	const char *endpoint = variable("HF_ENDPOINT"), *home = hf_home(a);

	*c = (HubConfig){ 0 };
	endpoint = endpoint ? endpoint : "https://huggingface.co";
	if (strncmp(endpoint, "https://", 8) != 0 && strncmp(endpoint, "http://", 7) != 0)
		return error_set(err, LLMC_E_INPUT,
		                 "HF_ENDPOINT=%s: expected an address such as "
		                 "https://huggingface.co",
		                 endpoint);
	c->endpoint = without_slash(endpoint, a);
	TRY(read_folders(c, home, a, err));
	TRY(read_token(c, home, a, err));
	c->offline =
	    is_true(variable("HF_HUB_OFFLINE")) || is_true(variable("TRANSFORMERS_OFFLINE"));
	const char *ca = variable("CURL_CA_BUNDLE");
	ca = ca ? ca : variable("SSL_CERT_FILE");
	c->ca_file = ca ? ca : variable("REQUESTS_CA_BUNDLE");
	c->ca_dir = variable("SSL_CERT_DIR");
	if (c->ca_file && !file_exists(c->ca_file))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: no such file; CURL_CA_BUNDLE, SSL_CERT_FILE and "
		                 "REQUESTS_CA_BUNDLE name a file of CA certificates",
		                 c->ca_file);
	return read_stall(c, err);
}
