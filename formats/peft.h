/* Low-rank adapters as PEFT saves them: a folder with adapter_config.json and
 * adapter_model.safetensors. Matrices of a model become W + scale * B A. Other tensors of an
 * adapter (biases, whole modules, magnitudes) are not ignored: opening fails and names them. Files
 * are untrusted, as in safetensors.h. */
#ifndef LLMC_FORMATS_PEFT_H
#define LLMC_FORMATS_PEFT_H

#include "base/error.h"
#include "formats/dtype.h"

typedef struct Peft Peft;

/* scale * left right in fp32: left [rows, rank] includes the scale; right is [rank, cols], for
 * stacked experts one such matrix per `each` rows */
typedef struct PeftDelta {
	int64_t rows, cols, rank, each; /* each 0: one `right` for all rows */
	const float *left, *right;
} PeftDelta;

/* scale: factor for the whole adapter, on top of its own alpha / r. E_INPUT: not an adapter folder,
 * or an unsupported feature */
llmc_status peft_open(const char *folder, double scale, Peft **out, llmc_error *err);
void peft_close(Peft *p);
/* Returns whether the adapter changes the module ("model.layers.0.mlp.up_proj", without
 * ".weight") */
bool peft_has(const Peft *p, const char *module);
/* Experts that transformers stores stacked: writes to buf the module name for peft_delta whose
 * delta covers the matrices [out, cols] of all experts below `stem` ("model.layers.0"), first
 * expert first. param: "gate_up_proj", "down_proj". Returns false if the adapter has none. */
bool peft_experts(const Peft *p, const char *stem, const char *param, int64_t out, int64_t cols,
                  char *buf, size_t cap);
/* Delta of the module's matrix [rows, cols]; rows -1: any. *out NULL: none. Valid until peft_close.
 * E_INPUT: the shapes differ */
llmc_status peft_delta(Peft *p, const char *module, int64_t rows, int64_t cols,
                       const PeftDelta **out, llmc_error *err);
/* Returns a module whose delta was never requested; NULL: none */
const char *peft_unused(const Peft *p);
/* Adds: x[c] += delta[row][first + c] for c < n */
void peft_add(const PeftDelta *d, int64_t row, int64_t first, int64_t n, float *x);

#endif
