/* Reads members of a plan's JSON strictly; used by plan_read.c. If a member is invalid, each rd_
 * function ends the read with a message that names the location. */
#ifndef LLMC_PLAN_PLAN_READ_H
#define LLMC_PLAN_PLAN_READ_H

#include <jansson.h>

#include "formats/name_table.h"
#include "plan/plan.h"

enum { RD_MAX_COUNT = 1 << 20 };
#define RD_MAX_SIZE ((int64_t)1 << 48)

typedef struct PlanReader {
	Arena *arena;
	llmc_error *err;
	const char *name;
	llmc_status status;
	jmp_buf out;
	char place[256]; /* "phase[0].step[12]" */
	size_t place_len;
	Plan *p;
	size_t n_value, n_kernel;
	NameEntry *value; /* names of tensors (at = index) and of buffers (at = n_tensor + index) */
	NameEntry *kernel;
} PlanReader;

void rd_bad(PlanReader *r, const char *key, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
size_t rd_enter(PlanReader *r, const char *key, int index);
void rd_leave(PlanReader *r, size_t was);
const char *rd_type_name(const json_t *j);
void rd_keys(PlanReader *r, json_t *j, const char *list);
int64_t rd_int_value(PlanReader *r, const json_t *v, const char *key, int64_t min, int64_t max);
int64_t rd_get_int(PlanReader *r, json_t *j, const char *key, int64_t min, int64_t max);
bool rd_get_bool(PlanReader *r, json_t *j, const char *key);
double rd_num_value(PlanReader *r, const json_t *v, const char *key);
double rd_get_num(PlanReader *r, json_t *j, const char *key);
const char *rd_str_value(PlanReader *r, const json_t *v, const char *key);
const char *rd_get_str(PlanReader *r, json_t *j, const char *key);
const char *rd_get_str_or_null(PlanReader *r, json_t *j, const char *key);
const char *rd_get_id(PlanReader *r, json_t *j, const char *key);
Dtype rd_get_dtype(PlanReader *r, json_t *j, const char *key);
json_t *rd_get_array(PlanReader *r, json_t *j, const char *key, int min, int max, int *n);
/* Returns the index of a kernel. Call it after the names of kernels have been read. */
int rd_kernel(PlanReader *r, const char *key, const char *id);
/* Reads the plan's member `persistent`, if there is one. Call it after the names of kernels have
 * been read. */
void rd_persistent(PlanReader *r, json_t *j);
/* Reads the prefetches of a step. Call it after the names of tensors have been read. */
void rd_prefetch(PlanReader *r, json_t *j, PlanPrefetch *f);
PlanExtent rd_extent(PlanReader *r, json_t *v, const char *key);
PlanExtent rd_get_extent(PlanReader *r, json_t *j, const char *key);
/* ---- plan_read_rope.c ---- */

void rd_rope(PlanReader *r, json_t *j, PlanRope *o);

#endif
