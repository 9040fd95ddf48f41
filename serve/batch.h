/* Files and batches of requests, as OpenAI has them: /v1/files and /v1/batches over a folder of the server's own.
 *
 *   files.c      the folder, its table of files, their routes
 *   batches.c    the table of batches, their routes
 *   batch_run.c  one thread: lines of a file as requests of the server, behind all others, their answers as lines of two more files
 *
 * Nothing that a client says becomes a path: files are called by their ids, which are ours. What is there survives a restart, and a batch goes on with the lines
 * that have no answer yet. A folder belongs to one server at a time. */
#ifndef LLMC_SERVE_BATCH_H
#define LLMC_SERVE_BATCH_H

#include <jansson.h>

#include "serve/req.h"

enum { ID_SIZE = 40, MAX_FLIGHTS = 256, MAX_STORED = 10000, MAX_LINES = 50000, BATCH_S = 24 * 3600 };

typedef struct Stored { /* a file */
	char        id[ID_SIZE]; /* also its name in the folder */
	char       *name;        /* what its client calls it */
	char       *owner;       /* the name of the key that it came with; "": the server's own, or none */
	const char *purpose;     /* a constant */
	int64_t     bytes;
	time_t      created;
} Stored;

typedef enum BatchStatus {
	BATCH_VALIDATING, BATCH_IN_PROGRESS, BATCH_FINALIZING, BATCH_CANCELLING, /* the thread has something to do with it */
	BATCH_COMPLETED, BATCH_FAILED, BATCH_EXPIRED, BATCH_CANCELLED,
	N_BATCH_STATUS,
} BatchStatus;

typedef struct Batch {
	struct Batch *next;      /* in the order of their creation */
	char        id[ID_SIZE], input[ID_SIZE];
	char        file[2][ID_SIZE]; /* of answers and of errors */
	bool        has[2];      /* it is there for clients */
	char       *owner;
	const char *endpoint;    /* a constant */
	BatchStatus status;
	time_t      at[N_BATCH_STATUS]; /* when it became so; 0: it has not */
	time_t      expires;
	int64_t     total, completed, failed; /* lines */
	json_t     *metadata, *errors; /* NULL: null */
	bool        cancel;
} Batch;

typedef struct Flight { /* a line's request in work */
	Req   *r;                /* NULL: none */
	size_t line;
	bool   done;
} Flight;

typedef struct Store {
	Server   *srv;
	char     *dir;
	int       lock_fd;
	int64_t   max_bytes, max_file; /* of all files, of one that comes */
	pthread_t thread;
	bool      has_thread;
	pthread_mutex_t lock;    /* all below; Server.lock is never taken before it */
	pthread_cond_t  change;
	Stored   *file;
	size_t    n_file;
	Batch    *first;
	int64_t   used;          /* bytes of files, those that are being written too */
	bool      stop;
	Flight    flight[MAX_FLIGHTS];
} Store;

/* files.c. dir is made, for its owner alone. E_INPUT: it is another server's, or others may enter it. */
llmc_status store_open(Server *s, const char *dir, int64_t max_bytes, Store **out, llmc_error *err);
void        store_close(Store *st);                 /* nobody asks any more; NULL is fine */
Store      *store_of(Req *r, Problem *p);           /* NULL with a Problem: the server keeps no files */
void        store_id(char out[ID_SIZE], const char *prefix);
void        store_path(const Store *st, char *out, size_t cap, const char *id, const char *tail);
bool        store_sees(const Req *r, const char *owner); /* may this client see what is so owned? */
Stored     *store_find(Store *st, const char *id);  /* lock held; NULL: none */
bool        store_add(Store *st, const Stored *f);  /* texts are copied; lock held; false: out of memory */
/* The page of a list that a query asks for: `limit` and what is behind `after`. False with a Problem. */
bool        store_page(Req *r, int most, int *limit, char after[ID_SIZE], Problem *p);
void        store_list_end(Strbuf *b, const char *first, const char *last, bool more); /* ids, "": none */

/* batches.c */
bool        batches_load(Store *st, const char *id, llmc_error *err); /* of the file id.json; false: it cannot be used, err says why */
void        batches_free(Store *st);
void        batch_json(const Batch *b, Strbuf *out); /* lock held */
bool        batch_save(Store *st, const Batch *b);   /* lock held; false: the disk does not take it */
static inline bool
batch_ended(const Batch *b)
{
	return b->status >= BATCH_COMPLETED;
}

/* batch_run.c */
llmc_status batch_start(Store *st, llmc_error *err); /* the thread */
void        batch_stop(Store *st);                   /* what is in work is cancelled, and done again at the next start; NULL is fine */

#endif
