/* Low-rank adapters as PEFT saves them: a folder of adapter_config.json and
 * adapter_model.safetensors. Matrices of a model get W + scale * B A; what an adapter holds beside
 * such pairs (biases, whole modules, magnitudes) is refused by name, never passed over. Untrusted,
 * as safetensors.h. */
#ifndef LLMC_FORMATS_PEFT_H
#define LLMC_FORMATS_PEFT_H

#include "base/error.h"
#include "formats/dtype.h"

typedef struct Peft Peft;

/* scale * left right, as fp32: left [rows, rank], with the scale in it; right [rank, cols], of
 * stacked experts one for each `each` rows */
typedef struct PeftDelta {
	int64_t rows, cols, rank, each; /* each 0: one for all rows */
	const float *left, *right;
} PeftDelta;

/* scale: of the whole adapter, beside its own alpha / r. E_INPUT: not such a folder, or something
 * that is not read */
llmc_status peft_open(const char *folder, double scale, Peft **out, llmc_error *err);
void peft_close(Peft *p);
/* Does it change the module ("model.layers.0.mlp.up_proj", without ".weight")? */
bool peft_has(const Peft *p, const char *module);
/* Experts that transformers keeps stacked: the name for peft_delta of what changes their matrices
 * [out, cols], all in one below `stem` ("model.layers.0"), rows of the first expert first; param:
 * "gate_up_proj", "down_proj". Written to buf; false: nothing does. */
bool peft_experts(const Peft *p, const char *stem, const char *param, int64_t out, int64_t cols,
                  char *buf, size_t cap);
/* What it adds to the module's matrix [rows, cols], rows -1: as many as it has; *out NULL: nothing.
 * Kept until peft_close. E_INPUT: other shapes */
llmc_status peft_delta(Peft *p, const char *module, int64_t rows, int64_t cols,
                       const PeftDelta **out, llmc_error *err);
/* A module whose delta nobody has asked for; NULL: none */
const char *peft_unused(const Peft *p);
/* x[c] += delta[row][first + c], c < n */
void peft_add(const PeftDelta *d, int64_t row, int64_t first, int64_t n, float *x);

#endif
