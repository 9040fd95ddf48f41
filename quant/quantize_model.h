/* Quantises a GGUF of 16-bit tensors to a GGUF of blocks, or a folder of them to a folder in the
 * compressed-tensors format (hf_folder.h): selects the type of each tensor and writes the file
 * tensor by tensor.
 *
 * The result is written to OUT.partial, whose tensors have their final offsets from the start.
 * OUT.partial.done lists the finished tensors. A stopped run resumes from there when it is started
 * with the same input and options. Only a complete file is renamed to OUT. */
#ifndef LLMC_QUANT_QUANTIZE_MODEL_H
#define LLMC_QUANT_QUANTIZE_MODEL_H

#include "base/sha256.h"
#include "formats/gguf.h"
#include "quant/calibrate.h"
#include "quant/hf_folder.h"

typedef enum QuantMethod { QUANT_NEAREST, QUANT_WEIGHTED, QUANT_GPTQ, QUANT_AWQ } QuantMethod;

typedef struct QuantJob {
	const char *in, *out;
	/* types of matrices, and of the output (and a tied embedding); DT_NONE with bits: any */
	Dtype type, head;
	/* > 0: bits per weight on average; types are chosen by budget.h, and type becomes the most
	 * frequent one */
	double bits;
	FolderForm form; /* format of a folder's matrices; FOLDER_NONE: GGUF to GGUF */
	/* int4: columns per scale, 32 or 128; 0: 128 if it divides the columns of all matrices */
	int group;
	const Plan *plan; /* for a folder and for AWQ: uses of its tensors */
	QuantMethod method;
	double damp; /* damping of Hessians; 0: 6 * columns / inputs seen, within 0.03 to 1 */
	int64_t hessian_bytes;  /* memory for Hessians at a time; one layer may exceed it */
	const Imatrix *imatrix; /* NULL: importance from calibration */
	/* calibration; NULL session: none */
	Calibration *calibration;
	Session *session;
	const int32_t *tok; /* [n_window][width] */
	int32_t n_window, width;
	Threads *threads;
	/* reports progress; return false to stop */
	bool (*progress)(void *user, const char *doing, int64_t done, int64_t of);
	/* bits: called per matrix with its type; may be NULL */
	void (*chose)(void *user, const char *tensor, const char *type, double bits, double error,
	              double cost);
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* results */
	int n_tensor, n_quantised, n_resumed;
	int64_t in_bytes, out_bytes, weights,
	    weight_bytes; /* weights, weight_bytes: of quantised matrices */
	double calibrate_s;
} QuantJob;

/* Parses a block type that llmc can quantise to. On error the message lists them. */
llmc_status quant_type(const char *name, Dtype *out, llmc_error *err);
/* The returned imatrix is what job->calibration gathered; NULL: nothing */
llmc_status quant_run(QuantJob *job, Arena *a, llmc_error *err);
/* Gathers only squares */
llmc_status quant_calibrate(QuantJob *job, llmc_error *err);

#endif
