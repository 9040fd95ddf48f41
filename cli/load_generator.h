/* A load generator for OpenAI servers: many requests over plain HTTP from one thread, each on a
 * connection of its own. */
#ifndef LLMC_CLI_LOAD_GENERATOR_H
#define LLMC_CLI_LOAD_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct LoadTarget {
	char host[256], port[8], path[512]; /* path: of the route, "/v1/completions" */
} LoadTarget;

/* "http://127.0.0.1:8080" or with a path before /v1; false: no such URL. */
bool load_target(const char *url, const char *route, LoadTarget *out);

/* Body of GET `route` as a NUL-terminated string (free() it); NULL with a sentence in why. */
char *load_get(const LoadTarget *t, const char *path, const char *api_key, char why[200]);

typedef struct LoadRequest {
	double
	    at; /* seconds after the start when it is due; with `clients` only the order counts */
	char *body; /* JSON */
	size_t size;
	/* results, seconds after the start */
	double sent, first, last, end;
	double *token_at; /* [n_token] times of the pieces of the answer */
	int32_t n_token, cap;
	int32_t new_tokens, prompt_tokens; /* as the server counts them; -1: it does not say */
	int status;                        /* of HTTP; 0: no answer */
	bool ok;
	char error[160];
} LoadRequest;

typedef struct LoadOptions {
	const LoadTarget *target;
	const char *api_key; /* or NULL */
	int clients; /* > 0: so many at a time, each sends its next when the last is done; 0: by due
	                time */
	double timeout; /* seconds of one request */
	void (*progress)(void *user, size_t done, size_t running);
	void *user;
	bool (*stop)(void); /* asked often; true ends the run */
} LoadOptions;

/* Runs all; results in the requests. false with a sentence in why: nothing could be sent at all. */
bool load_run(const LoadOptions *o, LoadRequest *r, size_t n, double *took, char why[200]);

#endif
