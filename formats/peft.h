/* Low-rank adapters as PEFT saves them: a folder of adapter_config.json and adapter_model.safetensors. Matrices of a model get W + scale * B A; what an
 * adapter holds beside such pairs (biases, whole modules, magnitudes) is refused by name, never passed over. Untrusted, as safetensors.h. */
#ifndef LLMC_FORMATS_PEFT_H
#define LLMC_FORMATS_PEFT_H

#include "base/error.h"
#include "formats/dtype.h"

typedef struct Peft Peft;

/* scale * left right, as fp32: left [rows, rank], with the scale in it; right [rank, cols] */
typedef struct PeftDelta {
	int64_t rows, cols, rank;
	const float *left, *right;
} PeftDelta;

/* scale: of the whole adapter, beside its own alpha / r. E_INPUT: not such a folder, or something that is not read */
llmc_status peft_open(const char *folder, double scale, Peft **out, llmc_error *err);
void        peft_close(Peft *p);
/* Does it change the module ("model.layers.0.mlp.up_proj", without ".weight")? */
bool        peft_has(const Peft *p, const char *module);
/* What it adds to the module's matrix [rows, cols], rows -1: as many as it has; *out NULL: nothing. Kept until peft_close. E_INPUT: other shapes */
llmc_status peft_delta(Peft *p, const char *module, int64_t rows, int64_t cols, const PeftDelta **out, llmc_error *err);
/* A module whose delta nobody has asked for; NULL: none */
const char *peft_unused(const Peft *p);
/* x[c] += delta[row][first + c], c < n */
void        peft_add(const PeftDelta *d, int64_t row, int64_t first, int64_t n, float *x);

#endif
