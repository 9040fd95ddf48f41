/* What shard.c has cut, for the texts of plans. */
#ifndef LLMC_COMPILER_SHARD_H
#define LLMC_COMPILER_SHARD_H

#include "compiler/graph.h"

/* What is dealt to ranks: heads with all that is theirs, columns of a feed-forward, rows of the head */
#define SHARE_LIST(X)                                                                              \
	X(Q, "query heads") X(KV, "kv heads") X(FFN, "ffn columns") X(EXPERT, "columns of an expert, or experts") X(SHARED, "columns of the shared expert") \
	X(VOCAB, "vocabulary")
typedef enum ShareKind {
#define X(name, text) SHARE_##name,
	SHARE_LIST(X)
#undef X
	SHARE_COUNT
} ShareKind;
typedef struct Share { int64_t first, count; } Share;

typedef struct Shard {
	int64_t total[SHARE_COUNT], unit[SHARE_COUNT]; /* total 0: the model has none */
	Share  *share[SHARE_COUNT];                    /* [ranks] */
	int     copies;                                /* ranks that hold the same kv head; 1: none is held twice */
} Shard;

extern const char *const share_text[SHARE_COUNT];

#endif
