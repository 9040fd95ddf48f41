/* Diagnostics of the compiler: messages with file:line:column, a caret and notes. At most 20 are
 * collected. */
#ifndef LLMC_FORMATS_DIAG_H
#define LLMC_FORMATS_DIAG_H

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"

typedef struct SourceText { /* one YAML file, kept for carets */
	const char *name;
	const char *text;
	size_t size;
} SourceText;

typedef struct Loc {
	/* NULL: the location has no source text (a default, or an override of the command line) */
	const SourceText *src;
	int line, col; /* 1-based; 0: unknown */
	/* line of the key in the resolved description (model.yaml of the artifact); 0: not a key */
	int resolved;
} Loc;

typedef struct Diag {
	Arena *perm; /* lives as long as the compile call; its oom jump ends that call */
	Strbuf text; /* rendered errors and warnings */
	int n_error, n_warning;
	bool fault;  /* BUG() was reached */
	jmp_buf bug; /* target of BUG(); set by the compile call */
} Diag;

enum { DIAG_MAX_ERRORS = 20 };

void diag_init(Diag *d, Arena *perm); /* text is freed with the arena, so release the arena first */
/* "file:line:col: error: text" with the source line and a caret */
void err_at(Diag *d, Loc loc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void warn_at(Diag *d, Loc loc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void note_at(Diag *d, Loc loc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Copies the collected text to err and returns the status: E_BUG after BUG(), else E_INPUT. */
llmc_status diag_error(const Diag *d, llmc_error *err);
/* Reports a fault of llmc: ends the compile call with LLMC_E_BUG and this text. */
void diag_bug(Diag *d, Loc loc, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6), noreturn));
#define BUG(d, loc, ...) diag_bug((d), (loc), __FILE__, __LINE__, __VA_ARGS__)

#endif
