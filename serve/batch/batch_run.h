/* A run of a batch by the thread of batches. */
#ifndef LLMC_SERVE_BATCH_BATCH_RUN_H
#define LLMC_SERVE_BATCH_BATCH_RUN_H

#include "base/file.h"
#include "serve/batch/batch.h"

enum {
	MAX_ERRORS = 100,
	MAX_NAME = 512,
	MORE_THAN_BODY = 16 << 10 /* bytes of a line in addition to its body */
};

typedef struct BatchLine {
	uint64_t at;
	uint32_t n;
	uint8_t tries;
	bool begun, done;
} BatchLine; /* n bytes of the file at offset `at` */

typedef struct BatchRun {
	FileStore *st;
	Batch *b;
	FileMap in;
	BatchLine *line;
	size_t n_line, next;         /* next: all lines before this one have begun */
	json_t *names;               /* maps custom_id to its line number */
	uint32_t again[MAX_FLIGHTS]; /* lines to retry, which were refused for lack of capacity */
	int n_again, n_flights, most_flights,
	    busy; /* busy: consecutive refusals for lack of capacity */
	double pause_until;
	size_t n_landed; /* lines answered in this turn */
	bool yields;     /* it is another owner's turn: the run ends when no line is in flight */
	/* number of mistakes in the file; `errors` holds at most MAX_ERRORS of them */
	size_t n_wrong;
	int part[2];    /* descriptors of the output and error files; -1: not open */
	json_t *errors; /* mistakes in the file */
	bool full;      /* the disk is full */
} BatchRun;

/* batch_input.c */
void batch_wrong(BatchRun *run, size_t line, const char *code, const char *param, const char *fmt,
                 ...);
/* Find the raw bytes of the value of `key` in the JSON object s [n], so that numbers stay as
 * written. False: the key is absent, or a key has escapes, which the parser might read
 * differently. */
bool batch_value_span(const char *s, size_t n, const char *key, const char **at, size_t *len);
/* Parse a line to an object. check_file has validated it. */
json_t *batch_line_object(const BatchRun *run, size_t i, Problem *p);
/* Check all lines. False: run->errors has mistakes, or the run was stopped. */
bool batch_check(BatchRun *run);

#endif
