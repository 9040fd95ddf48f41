/* Files and batches of requests, as OpenAI has them: /v1/files and /v1/batches over a folder of the
 * server's own.
 *
 *   file_store.c      the folder: what lies there, who has how much of it
 *   files_api.c      routes of files
 *   batches.c    the table of batches, their routes
 *   batch_runner.c  one thread: lines of a file as requests of the server, behind all others, their
 * answers as lines of two more files
 *
 * Nothing that a client says becomes a path: files are called by their ids, which are ours. What is
 * there survives a restart, and a batch goes on with the lines that have no answer yet. A folder
 * belongs to one server at a time. Room is shared by the keys of --keys alike, and their batches
 * run in turn. */
#ifndef LLMC_SERVE_BATCH_BATCH_H
#define LLMC_SERVE_BATCH_BATCH_H

#include <jansson.h>

#include "serve/http/request.h"

enum {
	ID_SIZE = 40,
	MAX_FLIGHTS = 256,
	MAX_STORED = 10000,
	MAX_LINES = 50000,
	BATCH_S = 24 * 3600,
	SLICE = 200
}; /* SLICE: lines of a batch while another owner waits */

typedef struct StoredFile { /* a file */
	char id[ID_SIZE];   /* also its name in the folder */
	char *name;         /* what its client calls it */
	char *owner; /* the name of the key that it came with; "": the server's own, or none */
	const char *purpose; /* a constant */
	int64_t bytes;
	time_t created;
} StoredFile;

typedef enum BatchStatus {
	BATCH_VALIDATING,
	BATCH_IN_PROGRESS,
	BATCH_FINALIZING,
	BATCH_CANCELLING, /* the thread has something to do with it */
	BATCH_COMPLETED,
	BATCH_FAILED,
	BATCH_EXPIRED,
	BATCH_CANCELLED,
	N_BATCH_STATUS,
} BatchStatus;

typedef struct Batch {
	struct Batch *next; /* in the order of their creation */
	char id[ID_SIZE], input[ID_SIZE];
	char file[2][ID_SIZE]; /* of answers and of errors */
	bool has[2];           /* it is there for clients */
	char *owner;
	const char *endpoint; /* a constant */
	BatchStatus status;
	time_t at[N_BATCH_STATUS]; /* when it became so; 0: it has not */
	time_t expires;
	int64_t total, completed, failed; /* lines */
	json_t *metadata, *errors;        /* NULL: null */
	int64_t bytes;                    /* of its own file, with metadata and errors */
	int saves;                        /* that are under way */
	bool cancel, fresh; /* fresh: it is being written for the first time: its thread and its
	                       lists leave it out */
	double later;    /* its lines found no room when its turn ended: it has nothing to do before
	                    that time */
	int busy, tries; /* and in its next turn it waits and tries as it would have in that one */
	int waited; /* so many of its lines, the first that are not answered, have been tried */
} Batch;

typedef struct OwnerUsage {
	char *owner;
	int64_t used;
	uint64_t served;
} OwnerUsage; /* bytes; when the latest of its batches has begun */

typedef struct InFlightLine { /* a line's request in work */
	Req *r;               /* NULL: none */
	size_t line;
	bool done;
} InFlightLine;

typedef struct FileStore {
	Server *srv;
	char *dir;
	int lock_fd;
	int64_t max_bytes, max_file; /* of all files, of one that comes */
	pthread_t thread;
	bool has_thread;
	pthread_mutex_t save; /* of who writes the state of a batch; taken before `lock`, which
	                         nobody holds while a disk writes */
	pthread_mutex_t lock; /* all below up to `fly`; Server.lock is never taken before it */
	pthread_cond_t change;
	StoredFile *file;
	size_t n_file;
	Batch *first;
	int64_t used;            /* bytes of files, those that are being written too */
	OwnerUsage *share, lost; /* lost: of owners for whom there was no memory */
	size_t n_share;
	uint64_t n_served;
	bool stop;
	pthread_mutex_t flight_lock; /* all below: who brings an answer waits for nothing else */
	pthread_cond_t landed;
	bool nudged; /* the thread is to look at stop and cancel */
	InFlightLine flight[MAX_FLIGHTS];
} FileStore;

/* file_store.c. dir is made, for its owner alone. E_INPUT: it is another server's, or others may
 * enter it. What a server that fell has left half there goes. */
llmc_status store_open(Server *s, const char *dir, int64_t max_bytes, FileStore **out,
                       llmc_error *err);
void store_close(FileStore *st);         /* nobody asks any more; NULL is fine */
FileStore *store_of(Req *r, Problem *p); /* NULL with a Problem: the server keeps no files */
void store_id(char out[ID_SIZE], const char *prefix);
void store_path(const FileStore *st, char *out, size_t cap, const char *id, const char *tail);
bool store_sees(const Req *r, const char *owner);      /* may this client see what is so owned? */
StoredFile *store_find(FileStore *st, const char *id); /* lock held; NULL: none */
bool store_add(FileStore *st,
               const StoredFile *f); /* texts are copied; lock held; false: out of memory */
/* Bytes of an owner's, lock held: taken where they fit the folder and its part of it, batches that
 * are over and have no files left going for them; counted in any case, also below 0. */
bool store_take(FileStore *st, const char *owner, int64_t bytes);
void store_count(FileStore *st, const char *owner, int64_t bytes);
OwnerUsage *store_share(FileStore *st, const char *owner);
size_t store_most(const FileStore *st, const char *owner); /* files, or batches, that it may have */
/* The page of a list that a query asks for: `limit` and what is behind `after`. False with a
 * Problem. */
bool store_page(Req *r, int most, int *limit, char after[ID_SIZE], Problem *p);
void store_list_end(Strbuf *b, const char *first, const char *last, bool more); /* ids, "": none */

/* batches.c */
bool
batches_load(FileStore *st, const char *id,
             llmc_error *err); /* of the file id.json; false: it cannot be used, err says why */
void batches_free(FileStore *st);
void batch_json(const Batch *b, Strbuf *out); /* lock held */
bool batch_save(FileStore *st,
                const char *id); /* without the lock; false: the disk does not take it */
int64_t
batches_spare(const FileStore *st,
              const char *owner); /* bytes that batches_evict would free in all; lock held */
bool batches_evict(FileStore *st,
                   const char *owner); /* the oldest that is over and has no files goes, of an owner
                                          or (NULL) of all; lock held; false: there is none */
void batch_wake(
    FileStore *st); /* batch_runner.c: stop or a batch's cancel has been set; without the lock */
static inline bool
batch_ended(const Batch *b)
{
	return b->status >= BATCH_COMPLETED;
}

/* batch_runner.c */
llmc_status batch_start(FileStore *st, llmc_error *err); /* the thread */
void batch_stop(FileStore *st); /* what is in work is cancelled, and done again at the next start;
                                   NULL is fine */

#endif
