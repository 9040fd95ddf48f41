/* Diagnostics of the compiler: sentences with file:line:column, a caret and notes, collected up
 * to 20. */
#ifndef LLMC_FORMATS_DIAG_H
#define LLMC_FORMATS_DIAG_H

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"

typedef struct SourceText { /* one file of YAML, kept for carets */
	const char *name;
	const char *text;
	size_t size;
} SourceText;

typedef struct Loc {
	const SourceText
	    *src;      /* NULL: a place without text (a default, an override of the command line) */
	int line, col; /* from 1; 0: unknown */
	int resolved;  /* the key's line in the resolved description, an artifact's model.yaml; 0:
	                  not of a key */
} Loc;

typedef struct Diag {
	Arena *perm; /* lives as long as the compile call; its oom jump ends that call */
	Strbuf text; /* what is to be shown, errors and warnings alike */
	int n_error, n_warning;
	bool fault;  /* BUG() was reached */
	jmp_buf bug; /* BUG() jumps here; the compile call sets it */
} Diag;

enum { DIAG_MAX_ERRORS = 20 };

void diag_init(Diag *d, Arena *perm); /* its text goes with the arena, which therefore goes first */
/* "file:line:col: error: text" with the source line and a caret */
void err_at(Diag *d, Loc loc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void warn_at(Diag *d, Loc loc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void note_at(Diag *d, Loc loc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* What to hand back when there are errors: the text, with E_BUG after BUG(), else E_INPUT. */
llmc_status diag_error(const Diag *d, llmc_error *err);
/* The candidate nearest to `word` by edit distance, NULL when none is close. */
const char *diag_nearest(const char *word, const char *const *candidates, size_t n);
/* A fault of llmc: ends the compile call with LLMC_E_BUG and this text. */
void diag_bug(Diag *d, Loc loc, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6), noreturn));
#define BUG(d, loc, ...) diag_bug((d), (loc), __FILE__, __LINE__, __VA_ARGS__)

#endif
