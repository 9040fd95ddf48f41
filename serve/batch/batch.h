/* Files and batches of requests, as in OpenAI's API: /v1/files and /v1/batches, stored in a folder
 * of the server.
 *
 *   file_store.c    files and the usage of each owner
 *   store_open.c    opening, loading and closing of the folder
 *   files_api.c     routes of files
 *   batch_table.c   the table of batches, their files and the space that they take
 *   batches.c       routes of batches
 *   batch_input.c   the lines of a batch, read and checked
 *   batch_runner.c  one thread: runs the lines of a file as requests with the lowest priority and
 *                   writes the answers as lines of two more files
 *
 * No client input becomes a path: files are named by ids of the server. Files survive a restart,
 * and a batch continues with the lines that have no answer. Only one server uses a folder at a
 * time. Each key of --keys has an equal share of the space, and the batches of different keys take
 * turns. */
#ifndef LLMC_SERVE_BATCH_BATCH_H
#define LLMC_SERVE_BATCH_BATCH_H

#include <jansson.h>

#include "serve/http/request.h"

enum {
	ID_SIZE = 40,
	ID_DIGITS = 24, /* hexadecimal digits after the prefix */
	MAX_FLIGHTS = 256,
	MAX_STORED = 10000,
	MAX_LINES = 50000,
	BATCH_S = 24 * 3600,
	SLICE = 200
}; /* SLICE: lines of a batch per turn while another owner waits */

typedef struct StoredFile { /* a stored file */
	char id[ID_SIZE];   /* also its file name in the folder */
	char *name;         /* file name given by the client */
	/* name of the key that uploaded it; "": the server's own key, or no key */
	char *owner;
	const char *purpose; /* string constant */
	int64_t bytes;
	time_t created;
} StoredFile;

typedef enum BatchStatus {
	BATCH_VALIDATING,
	BATCH_IN_PROGRESS,
	BATCH_FINALIZING,
	BATCH_CANCELLING, /* in this status and those above, the thread has work to do */
	BATCH_COMPLETED,
	BATCH_FAILED,
	BATCH_EXPIRED,
	BATCH_CANCELLED,
	N_BATCH_STATUS,
} BatchStatus;

typedef struct Batch {
	struct Batch *next; /* in order of creation */
	char id[ID_SIZE], input[ID_SIZE];
	char file[2][ID_SIZE]; /* ids of the output and the error file */
	bool has[2];           /* the file is visible to clients */
	char *owner;
	const char *endpoint; /* string constant */
	BatchStatus status;
	time_t at[N_BATCH_STATUS]; /* time of each status change; 0: never */
	time_t expires;
	int64_t total, completed, failed; /* numbers of lines */
	json_t *metadata, *errors;        /* NULL: null */
	/* size of the batch's JSON file, including metadata and errors */
	int64_t bytes;
	int saves; /* number of writes of the JSON file in progress */
	/* fresh: its JSON file is being written for the first time; the batch is not listed and
	 * does not run yet */
	bool cancel, fresh;
	/* earliest time of its next turn, after its lines were refused for lack of capacity */
	double later;
	int busy, tries; /* backoff and retry counts, kept for its next turn */
	/* number of lines, from the first unanswered one on, that have been tried */
	int waited;
} Batch;

typedef struct OwnerUsage {
	char *owner;
	int64_t used;
	uint64_t served;
} OwnerUsage; /* used: bytes; served: sequence number of the owner's latest turn */

typedef struct InFlightLine { /* a line in flight and its request */
	Req *r;               /* NULL: free entry */
	size_t line;
	bool done;
} InFlightLine;

typedef struct FileStore {
	Server *srv;
	char *dir;
	int lock_fd;
	int64_t max_bytes, max_file; /* limits in bytes: all files, one upload */
	pthread_t thread;
	bool has_thread;
	/* serialises writers of batch state; taken before `lock`, which is never held during disk
	 * writes */
	pthread_mutex_t save;
	/* protects the fields up to flight_lock; Server.lock is never taken before it */
	pthread_mutex_t lock;
	pthread_cond_t change;
	StoredFile *file;
	size_t n_file;
	Batch *first;
	int64_t used;            /* bytes of files, including those being written */
	OwnerUsage *share, lost; /* lost: usage of owners whose entry could not be allocated */
	size_t n_share;
	uint64_t n_served;
	bool stop;
	/* protects the fields below: threads that deliver answers take no other lock */
	pthread_mutex_t flight_lock;
	pthread_cond_t landed;
	bool nudged; /* the thread must check `stop` and the batches' `cancel` */
	InFlightLine flight[MAX_FLIGHTS];
} FileStore;

/* file_store.c */
/* return the store; NULL with a Problem if the server stores no files */
FileStore *store_of(Req *r, Problem *p);
void store_id(char out[ID_SIZE], const char *prefix);
void store_path(const FileStore *st, char *out, size_t cap, const char *id, const char *tail);
bool store_sees(const Req *r, const char *owner);      /* may this client see an owner's files? */
StoredFile *store_find(FileStore *st, const char *id); /* NULL: no file has this id; lock held */
/* copies strings; lock held; false: out of memory */
bool store_add(FileStore *st, const StoredFile *f);
/* Count bytes of an owner, also negative amounts; lock held. */
void store_count(FileStore *st, const char *owner, int64_t bytes);
OwnerUsage *store_share(FileStore *st, const char *owner);
/* return a key's share of `all`; the server's own key may use all of it */
int64_t store_part(const FileStore *st, const char *owner, int64_t all);
/* return the number of files, and of batches, that an owner may have */
size_t store_most(const FileStore *st, const char *owner);
/* Read the query of a list: `limit` and `after`. False with a Problem. */
bool store_page(Req *r, int most, int *limit, char after[ID_SIZE], Problem *p);
/* first, last: ids; "": the list is empty */
void store_list_end(Strbuf *b, const char *first, const char *last, bool more);

/* batch_table.c */

/* read id.json; false: unusable, see err */
bool batches_load(FileStore *st, const char *id, llmc_error *err);
void batches_free(FileStore *st);
void batch_json(const Batch *b, Strbuf *out);   /* lock held */
bool batch_save(FileStore *st, const char *id); /* lock not held; false: the write failed */
/* bytes that batches_evict could free in total; lock held */
int64_t batches_spare(const FileStore *st, const char *owner);
/* remove the oldest finished batch without files, of an owner or (NULL) of all; lock held;
 * false: there is none */
bool batches_evict(FileStore *st, const char *owner);
/* Reserve bytes for an owner; lock held. False if they exceed the folder's limit or the owner's
 * share. Evicts finished batches without files first. */
bool store_take(FileStore *st, const char *owner, int64_t bytes);
/* Wake the thread of batches after stop or a batch's cancel was set; lock not held. */
void batch_wake(FileStore *st);
static inline bool
batch_ended(const Batch *b)
{
	return b->status >= BATCH_COMPLETED;
}

/* store_open.c. Makes dir, accessible to its owner only. E_INPUT: another server uses it, or other
 * users may enter it. Removes incomplete files of a crashed server. */
llmc_status store_open(Server *s, const char *dir, int64_t max_bytes, FileStore **out,
                       llmc_error *err);
void store_close(FileStore *st); /* call when no requests are left; NULL is allowed */

/* batch_runner.c */
llmc_status batch_start(FileStore *st, llmc_error *err); /* starts the thread */
/* cancels lines in flight, which run again after a restart; NULL is allowed */
void batch_stop(FileStore *st);

#endif
