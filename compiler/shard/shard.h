/* What shard.c has cut, for the texts of plans. */
#ifndef LLMC_COMPILER_SHARD_SHARD_H
#define LLMC_COMPILER_SHARD_SHARD_H

#include "compiler/graph.h"

/* What is dealt to ranks: heads with all that is theirs, columns of a feed-forward, rows of the
 * head */
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
	int copies[SHARE_COUNT]; /* of heads: ranks that hold the same kv head; 1: none is held
	                            twice */
} Shard;

/* How the graph, which is unfused, is dealt to its ranks. Errors where it cannot be. */
Shard *shard_deal(Graph *g);
/* Is this a tensor of that role, in whichever layer? */
bool shard_role(const PlanTensor *t, const char *role);

extern const char *const share_text[SHARE_COUNT];

#endif
