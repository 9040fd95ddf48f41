/* Shares of all ranks, computed for sharding; also used by the plan text */
#ifndef LLMC_COMPILER_SHARD_SHARD_H
#define LLMC_COMPILER_SHARD_SHARD_H

#include "compiler/graph.h"

/* Quantities that are distributed over ranks: heads and everything that belongs to them, columns of
 * a feed-forward, rows of the head */
#define SHARE_LIST(X)                                                                              \
	X(Q, "query heads") X(KV, "kv heads") X(Q_WINDOW, "query heads of windowed layers") X(KV_WINDOW, "kv heads of windowed layers")   \
	X(FFN, "ffn columns") X(FFN_WIDE, "ffn columns of wide layers") X(EXPERT, "columns of an expert, or experts")                     \
	X(SHARED, "columns of the shared expert") X(LIN, "value heads of delta rules") X(CONV, "channels of convolutions") X(VOCAB, "vocabulary")
typedef enum ShareKind {
#define X(name, text) SHARE_##name,
	SHARE_LIST(X)
#undef X
	    SHARE_COUNT
} ShareKind;
typedef struct ShardShare {
	int64_t first, count;
} ShardShare;

typedef struct Shard {
	int64_t total[SHARE_COUNT], unit[SHARE_COUNT]; /* total 0: the model has none */
	ShardShare *share[SHARE_COUNT];                /* [ranks] */
	/* number of ranks that hold the same kv head; 1: each kv head is on one rank */
	int copies[SHARE_COUNT];
} Shard;

/* Compute the shares of all ranks for an unfused graph. Reports an error if it cannot be
 * sharded. */
Shard *shard_deal(Graph *g);
/* Return whether the tensor has this role in any layer. */
bool shard_role(const PlanTensor *t, const char *role);

extern const char *const share_text[SHARE_COUNT];

#endif
