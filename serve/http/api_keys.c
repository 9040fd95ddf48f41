/* API keys of several clients, with limits per key on requests in flight. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sum64.h"
#include "serve/http/api_keys.h"

/* Parse name=N. False: another name, or not a number. */
static bool
limit(const char *word, const char *name, int64_t least, int64_t most, int64_t *out)
{
	size_t n = strlen(name);
	char *end;

	if (strncmp(word, name, n) != 0 || word[n] != '=')
		return false;
	errno = 0;
	long long v = strtoll(word + n + 1, &end, 10);
	*out = v;
	return end != word + n + 1 && !*end && !errno && v >= least && v <= most;
}

static llmc_status
read_line(Keys *k, char *line, const char *path, int number, llmc_error *err)
{
	char *save = NULL, *name = strtok_r(line, " \t\r", &save),
	     *text = name ? strtok_r(NULL, " \t\r", &save) : NULL;
	ApiKey key = { 0 };

	if (!name || *name == '#')
		return LLMC_OK;
	if (!text)
		return error_set(err, LLMC_E_INPUT,
		                 "%s:%d: expected NAME KEY and limits, found %s alone", path,
		                 number, name);
	for (char *word; (word = strtok_r(NULL, " \t\r", &save)) != NULL;) {
		int64_t v;
		if (limit(word, "requests", 1, INT32_MAX, &v))
			key.max_requests = (int32_t)v;
		else if (limit(word, "tokens", 1, INT64_MAX, &v))
			key.max_tokens = v;
		else if (limit(word, "priority", -PRIORITY_MOST, PRIORITY_MOST, &v))
			key.priority = (int32_t)v;
		else
			return error_set(err, LLMC_E_INPUT,
			                 "%s:%d: %s: expected requests=N, tokens=N (both at least "
			                 "1) or priority=N (-%d .. %d)",
			                 path, number, word, PRIORITY_MOST, PRIORITY_MOST);
	}
	for (const ApiKey *at = k->first; at; at = at->next)
		if (!strcmp(at->name, name) || !strcmp(at->text, text))
			return error_set(err, LLMC_E_INPUT,
			                 "%s:%d: %s has a name or a key that an earlier line has",
			                 path, number, name);
	ApiKey *more = malloc(sizeof *more);
	key.name = strdup(name);
	key.text = strdup(text);
	if (!more || !key.name || !key.text) {
		free(more);
		free(key.name);
		free(key.text);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	key.next = k->first;
	*more = key;
	k->first = more;
	k->n++;
	return LLMC_OK;
}

llmc_status
keys_open(const char *path, Keys **out, llmc_error *err)
{
	Strbuf text = { 0 };
	int number = 1;

	*out = NULL;
	TRY(file_read(path, 1 << 20, &text, err));
	Keys *k = calloc(1, sizeof *k);
	if (k)
		k->path = strdup(path);
	llmc_status status =
	    k && k->path ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
	if (status == LLMC_OK && text.data &&
	    strlen(text.data) != text.len) /* a NUL byte would hide the keys after it */
		status = error_set(err, LLMC_E_INPUT, "%s: no text: byte %zu is 0", path,
		                   strlen(text.data));
	for (char *at = text.data; at && *at && status == LLMC_OK; number++) {
		char *end = at + strcspn(at, "\n"), *next = *end ? end + 1 : end;
		*end = 0;
		status = read_line(k, at, path, number, err);
		at = next;
	}
	strbuf_release(&text);
	if (status == LLMC_OK && !k->first)
		status = error_set(
		    err, LLMC_E_INPUT,
		    "%s: holds no key; a line is NAME KEY [requests=N] [tokens=N] [priority=N]",
		    path);
	if (status != LLMC_OK) {
		keys_close(k);
		return status;
	}
	*out = k;
	return LLMC_OK;
}

void
keys_close(Keys *k)
{
	for (ApiKey *at = k ? k->first : NULL, *next; at; at = next) {
		next = at->next;
		free(at->name);
		free(at->text);
		free(at);
	}
	if (k)
		free(k->path);
	free(k);
}

static ApiKey *
named(const Keys *k, const char *name)
{
	for (ApiKey *at = k->first; at; at = at->next)
		if (!strcmp(at->name, name))
			return at;
	return NULL;
}

llmc_status
keys_reread(Keys *k, pthread_mutex_t *lock, llmc_error *err)
{
	Keys *fresh, gone = { 0 };

	TRY(keys_open(k->path, &fresh, err));
	pthread_mutex_lock(lock);
	k->n = fresh->n;
	for (ApiKey *at = k->first; at; at = at->next) {
		free(at->text);
		at->text = NULL;
	}
	for (ApiKey *at; (at = fresh->first) != NULL;) {
		ApiKey *old = named(k, at->name), **to = old ? &gone.first : &k->first;
		if (old) {
			old->text = at->text;
			old->max_requests = at->max_requests;
			old->max_tokens = at->max_tokens;
			old->priority = at->priority;
			at->text = NULL;
		}
		fresh->first = at->next;
		at->next = *to;
		*to = at;
	}
	fresh->first = gone.first;
	pthread_mutex_unlock(lock);
	keys_close(fresh);
	return LLMC_OK;
}

bool
keys_same(const char *given, const char *key)
{
	size_t n = strlen(key), m = strlen(given);
	unsigned char d = n != m;

	for (size_t i = 0; i < m; i++)
		d |= (unsigned char)(given[i] ^ key[n ? i % n : 0]);
	return d == 0;
}

ApiKey *
keys_find(const Keys *k, const char *given)
{
	ApiKey *found = NULL;

	/* compare with all keys, so that the time does not depend on the match */
	for (ApiKey *at = k ? k->first : NULL; at; at = at->next)
		if (at->text && keys_same(given, at->text))
			found = at;
	return found;
}

uint64_t
key_hash(const Req *r)
{
	const char *name = r->key ? r->key->name : r->owner;

	return name && *name ? sum64(name, strlen(name), 1) | 1 : 0;
}

bool
key_take(ApiKey *k, int64_t tokens, Problem *p)
{
	if (k->max_requests && k->requests >= k->max_requests)
		problem(p, 429, NULL,
		        "Rate limit reached: %d requests of this key (%s) are in flight, its limit "
		        "is %d.",
		        k->requests, k->name, k->max_requests);
	else if (k->max_tokens && k->tokens + tokens > k->max_tokens)
		problem(p, 429, NULL,
		        "Rate limit reached: prompts and answers of this key (%s) may have %lld "
		        "tokens at once, %lld are in flight, this request needs %lld.",
		        k->name, (long long)k->max_tokens, (long long)k->tokens, (long long)tokens);
	if (p->status) {
		p->code = "rate_limit_exceeded";
		return false;
	}
	k->requests++;
	k->tokens += tokens;
	return true;
}

void
key_give(ApiKey *k, int64_t tokens)
{
	k->requests--;
	k->tokens -= tokens;
}
