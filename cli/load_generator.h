/* Load generator for OpenAI servers: one thread, many requests over plain HTTP, one connection per
 * request. */
#ifndef LLMC_CLI_LOAD_GENERATOR_H
#define LLMC_CLI_LOAD_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct LoadTarget {
	char host[256], port[8], path[512]; /* path: path of the route, such as "/v1/completions" */
} LoadTarget;

/* Parse a URL such as "http://127.0.0.1:8080", which may have a path before /v1; false: not a
 * URL. */
bool load_target(const char *url, const char *route, LoadTarget *out);

/* Return the body of a GET as a string that the caller frees; NULL with a sentence in why. The
 * answer must be complete within `timeout` seconds, at most 20. */
char *load_get(const LoadTarget *t, const char *path, const char *api_key, double timeout,
               char why[200]);

typedef struct LoadRequest {
	/* due time, in seconds after the start; with `clients` only the order of the times
	 * matters */
	double at;
	char *body; /* JSON */
	size_t size;
	/* results, in seconds after the start */
	double sent, first, last, end;
	double *token_at; /* [n_token] arrival times of the parts of the output */
	int32_t n_token, cap;
	int32_t new_tokens, prompt_tokens; /* reported by the server; -1: not reported */
	int status;                        /* HTTP status; 0: no response */
	bool ok;
	char error[160];
} LoadRequest;

typedef struct LoadOptions {
	const LoadTarget *target;
	const char *api_key; /* NULL: none */
	/* > 0: number of concurrent clients, each of which sends its next request when its last one
	 * is answered; 0: requests are sent at their due times */
	int clients;
	double timeout; /* seconds per request */
	void (*progress)(void *user, size_t done, size_t running);
	void *user;
	bool (*stop)(void); /* called often; true ends the run */
} LoadOptions;

/* Run all requests; results are in their structs. False with a sentence in why: none could be
 * sent. */
bool load_run(const LoadOptions *o, LoadRequest *r, size_t n, double *took, char why[200]);

#endif
