/* Reading inputs and returning vectors: functions that embeddings, scores and classification
 * share. */
#ifndef LLMC_SERVE_DIALECTS_EMBEDDINGS_H
#define LLMC_SERVE_DIALECTS_EMBEDDINGS_H

#include "serve/dialects/generation.h"

/* Read the pooling of a request into g->er. False with a Problem: a wrong field, or a model that
 * generates text. */
bool embeddings_pool(Generation *g, const json_t *o, Problem *p);
/* Count the tokens that the tokenizer adds before and after an input with these flags. */
void embeddings_added(const Generation *g, int flags, size_t *before, size_t *after);
/* Truncate ids [n], tokenized with these LLMC_ADD_* flags, to `most` tokens. Tokens are removed
 * from the end of the input, not from those that the tokenizer adds after it, because models are
 * trained to pool the latter. Returns the new count. */
size_t embeddings_cut(const Generation *g, int flags, int32_t *ids, size_t n, size_t most);
/* Refuse an empty list of inputs, or one that exceeds the limit of a request. what: its field in
 * the body. */
bool embeddings_count(const Generation *g, const char *what, size_t n, Problem *p);
/* Read vLLM's `truncate_prompt_tokens`: the only value is -1, which sets *cut. */
bool embeddings_truncation(const json_t *o, bool *cut, Problem *p);
/* Add one input, a string or ids, which is `what`[i] of the body. cut: truncate to the context. */
bool embeddings_text(const Generation *g, const json_t *v, const char *what, size_t i, bool cut,
                     SubRequest *sub, Problem *p);
/* Begin and end vLLM's answer, a list of scores or labels. */
void embeddings_list_begin(const Generation *g, Strbuf *b);
void embeddings_list_end(const Generation *g, Strbuf *b);
void embeddings_floats(Strbuf *b, const float *x, size_t n); /* append an array of JSON */
/* Score of a document or a label */
typedef struct Rank {
	int32_t index;
	double score;
} Rank;
void embeddings_sort(Rank *rank, size_t n); /* sort by score, the highest first; ties by index */
/* Dialect.finish that appends the vector to the text of the choice, as floats */
void embeddings_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev);
/* Build the input of a classifier from two strings, joined as the model's tokenizer joins pairs.
 * cut: truncate the second. */
bool embeddings_pair(const Generation *g, const json_t *a, const json_t *b, bool cut,
                     SubRequest *sub, Problem *p);
/* Write an error in the form of Text Embeddings Inference. */
void tei_problem(Req *r, const Problem *p);
/* Read `truncate` and `truncation_direction` of Text Embeddings Inference. */
bool tei_truncation(const json_t *o, bool *cut, Problem *p);

#endif
