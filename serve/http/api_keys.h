/* API keys of several clients: a file with one line per client,
 *
 *     NAME KEY [requests=N] [tokens=N] [priority=N]
 *
 * `requests` and `tokens` limit the requests of a key that are in flight: their number, and the sum
 * of prompt tokens and maximum new tokens. `priority` is the best priority that requests of the key
 * get. Lines that begin with # are comments. */
#ifndef LLMC_SERVE_HTTP_API_KEYS_H
#define LLMC_SERVE_HTTP_API_KEYS_H

#include "serve/http/request.h"

enum { PRIORITY_MOST = 1000 };

/* never freed while the server runs, so that requests may point to it; fields read from the file
 * are protected by Server.lock */
typedef struct ApiKey {
	char *name;
	char *text;                     /* NULL: no longer in the file */
	int32_t max_requests, priority; /* max_requests 0: no limit */
	int64_t max_tokens;
	int32_t requests; /* in flight; Server.lock */
	int64_t tokens;
	struct ApiKey *next;
} ApiKey;

typedef struct Keys {
	ApiKey *first;
	char *path;
	atomic_int n;
} Keys; /* n: keys in the file */

llmc_status keys_open(const char *path, Keys **out, llmc_error *err);
void keys_close(Keys *k);
/* Read the file again. Keys that have been removed from it are refused from then on, and new limits
 * apply at once. On an error nothing changes. */
llmc_status keys_reread(Keys *k, pthread_mutex_t *lock, llmc_error *err);
/* Compare two keys in constant time. */
bool keys_same(const char *given, const char *key);
ApiKey *keys_find(const Keys *k, const char *given); /* NULL: none; lock held */
/* Hash of the name of the key that a request was sent with, or that a batch belongs to; 0: none */
uint64_t key_hash(const Req *r);
/* Count one more request of `tokens` tokens. False with a Problem: it exceeds the key's limits.
 * Lock held. */
bool key_take(ApiKey *k, int64_t tokens, Problem *p);
void key_give(ApiKey *k, int64_t tokens);

#endif
