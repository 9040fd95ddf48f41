/* A GGUF of 16-bit tensors -> one of blocks, or a folder of them -> a folder in the layout of
 * compressed-tensors (hf_folder.h): which tensor becomes what, and the file, written piece by
 * piece.
 *
 * The result grows as OUT.partial, whose tensors have their final places from the start;
 * OUT.partial.done names those that are in it. A run that was stopped goes on from there when it is
 * started again with the same input and options; only a complete file gets the name OUT. */
#ifndef LLMC_QUANT_QUANTIZE_MODEL_H
#define LLMC_QUANT_QUANTIZE_MODEL_H

#include "base/sha256.h"
#include "formats/gguf.h"
#include "quant/calibrate.h"
#include "quant/hf_folder.h"

typedef enum QuantMethod { QUANT_NEAREST, QUANT_WEIGHTED, QUANT_GPTQ, QUANT_AWQ } QuantMethod;

typedef struct QuantJob {
	const char *in, *out;
	Dtype type, head; /* of matrices; of the output's (and the embedding that is its too);
	                     DT_NONE, with bits: any */
	double bits; /* > 0: a weight, on average, of matrices whose types are chosen (budget.h);
	                type is then what most became */
	FolderForm form; /* of matrices of a folder, which becomes a folder; FOLDER_NONE: a GGUF
	                    becomes a GGUF */
	int group; /* int4: columns of a scale, 32 or 128; 0: 128 where all matrices have whole ones
	            */
	const Plan *plan; /* of a folder, and for awq: what its tensors are */
	QuantMethod method;
	double damp;            /* of Hessians; 0: 6 * columns / inputs seen, 0.03 to 1 */
	int64_t hessian_bytes;  /* at once, unless one layer needs more */
	const Imatrix *imatrix; /* given; NULL: what calibration finds */
	/* calibration: NULL session: none */
	Calibration *calibration;
	Session *session;
	const int32_t *tok; /* [n_window][width] */
	int32_t n_window, width;
	Threads *threads;
	/* where the job is; false stops it */
	bool (*progress)(void *user, const char *doing, int64_t done, int64_t of);
	/* bits: what was chosen, a call a matrix; may be NULL */
	void (*chose)(void *user, const char *tensor, const char *type, double bits, double error,
	              double cost);
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* found */
	int n_tensor, n_quantised, n_resumed;
	int64_t in_bytes, out_bytes, weights,
	    weight_bytes; /* weights, weight_bytes: of quantised matrices */
	double calibrate_s;
} QuantJob;

/* Is there a way to these blocks? If not, the sentence names those that there are. */
llmc_status quant_type(const char *name, Dtype *out, llmc_error *err);
/* What job->calibration sees is the file's imatrix; NULL: none was gathered */
llmc_status quant_run(QuantJob *job, Arena *a, llmc_error *err);
/* Gather squares alone */
llmc_status quant_calibrate(QuantJob *job, llmc_error *err);

#endif
