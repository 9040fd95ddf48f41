/* Reading routed experts of a mapped file ahead: see expert_ahead.c. */
#ifndef LLMC_RUNTIME_CPU_EXPERT_AHEAD_H
#define LLMC_RUNTIME_CPU_EXPERT_AHEAD_H

#include <stdatomic.h>

#include "plan/plan.h"
#include "runtime/weights/weights.h"

enum { EXPERT_MATRICES = 3 };

typedef struct MappedExperts {
	const char *data;
	int64_t bytes; /* per expert */
} MappedExperts;

/* Experts to load before a step */
typedef struct ExpertLoad {
	const int32_t *id; /* [n_tok, top_k], written by an earlier step */
	int n_experts, top_k, n_matrix;
	MappedExperts matrix[EXPERT_MATRICES];
} ExpertLoad;

typedef struct ExpertAhead {
	/* while steps are bound: the load of gate and up, which a down projection joins */
	ExpertLoad *last;
	int layer;
	atomic_int quiet; /* consecutive layers whose experts were all in memory */
	/* bytes of chosen experts; bytes of chosen experts that were not in memory */
	atomic_llong bytes, read;
} ExpertAhead;

/* Find the matrices to load before a step; call it in the order of the steps. load->n_matrix 0:
 * nothing to load */
void expert_ahead_bind(ExpertAhead *a, ExpertLoad *load, const PlanStep *st, void *const *arg,
                       const Plan *p, const Weights *w);
/* Issue the reads of one part of a step. */
void expert_ahead_load(ExpertAhead *a, const ExpertLoad *load, int64_t n_tok, int part,
                       int n_parts);

#endif
