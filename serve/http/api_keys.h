/* Keys of several clients: a file with a line for each,
 *
 *     NAME KEY [requests=N] [tokens=N] [priority=N]
 *
 * requests and tokens bound what a key has in work at once, tokens being those of prompts and of
 * the most that answers may have; priority is the best that its requests get. Lines that begin with
 * # are remarks. */
#ifndef LLMC_SERVE_HTTP_API_KEYS_H
#define LLMC_SERVE_HTTP_API_KEYS_H

#include "serve/http/request.h"

enum { PRIORITY_MOST = 1000 };

typedef struct ApiKey { /* it stays when the file is read again, so that requests may hold it; what
	                   a line says is under Server.lock */
	char *name;
	char *text;                     /* NULL: no line has it any more */
	int32_t max_requests, priority; /* max 0: no limit */
	int64_t max_tokens;
	int32_t requests; /* in work; Server.lock */
	int64_t tokens;
	struct ApiKey *next;
} ApiKey;

typedef struct Keys {
	ApiKey *first;
	char *path;
	atomic_int n;
} Keys; /* n: that the file has */

llmc_status keys_open(const char *path, Keys **out, llmc_error *err);
void keys_close(Keys *k);
/* The file again: keys that it has no more are refused, limits of others hold from now on. After an
 * error all is as before. */
llmc_status keys_reread(Keys *k, pthread_mutex_t *lock, llmc_error *err);
/* In a time that does not tell how much of it is right. */
bool keys_same(const char *given, const char *key);
ApiKey *keys_find(const Keys *k, const char *given); /* NULL: none; lock held */
/* One more request of so many tokens; false: it is more than the key may have, *p says so. Lock
 * held. */
bool key_take(ApiKey *k, int64_t tokens, Problem *p);
void key_give(ApiKey *k, int64_t tokens);

#endif
