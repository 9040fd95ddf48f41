/* Stack machine of pickle_read: input, stack, memo. Private to pickle*.c. */
#ifndef LLMC_FORMATS_PICKLE_MACHINE_H
#define LLMC_FORMATS_PICKLE_MACHINE_H

#include "formats/pickle.h"

typedef struct PickleMachine {
	Arena *a;
	const uint8_t *data;
	size_t n, at;
	const char *file;
	PickleValue **stack, **memo;
	size_t n_stack, cap_stack, n_memo, cap_memo;
	size_t n_item;  /* items added to tuples, lists and dicts so far */
	size_t n_value; /* values made so far */
	PickleStorages storages;
	llmc_error *err;
} PickleMachine;

extern PickleValue pickle_mark, pickle_other; /* shared constants; never modified */

/* Set the error: damaged pickle, with the position. */
llmc_status pickle_bad(const PickleMachine *m, const char *what);
/* Advance over n bytes. */
llmc_status pickle_take(PickleMachine *m, size_t n, const uint8_t **out);
/* n-byte little-endian integer */
llmc_status pickle_number(PickleMachine *m, size_t n, uint64_t *out);
/* Bytes up to a newline, which is skipped */
llmc_status pickle_line(PickleMachine *m, const uint8_t **s, size_t *n);
/* A new value of the arena */
llmc_status pickle_value_new(PickleMachine *m, PickleKind kind, PickleValue **out);
llmc_status pickle_push(PickleMachine *m, PickleValue *v);
llmc_status pickle_push_int(PickleMachine *m, int64_t num);
/* A string of n bytes; beyond PICKLE_MAX_STRING it becomes PICKLE_OTHER. */
llmc_status pickle_push_text(PickleMachine *m, size_t n);
llmc_status pickle_pop(PickleMachine *m, PickleValue **out);
/* Pop the last mark and the values above it; they stay valid until the next push. */
llmc_status pickle_pop_mark(PickleMachine *m, PickleValue ***item, size_t *n);
/* Append to a tuple, list or dict. The number of items must not exceed the bytes of the pickle;
 * copies from the memo could. */
llmc_status pickle_add_items(PickleMachine *m, PickleValue *v, PickleValue **item, size_t n);
llmc_status pickle_push_items(PickleMachine *m, PickleKind kind, PickleValue **item, size_t n);
/* Replace the last n values by a tuple. */
llmc_status pickle_push_tuple(PickleMachine *m, size_t n);
/* Memo entries */
llmc_status pickle_memo_put(PickleMachine *m, uint64_t at);
llmc_status pickle_memo_get(PickleMachine *m, uint64_t at);
/* Names, storages and calls that a checkpoint of weights needs (pickle_objects.c) */
llmc_status pickle_push_name(PickleMachine *m, const char *module, size_t n_module,
                             const char *name, size_t n_name);
llmc_status pickle_storage(PickleMachine *m);
llmc_status pickle_call(PickleMachine *m);

#endif
