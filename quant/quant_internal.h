/* State shared by the files of a running quantisation: its tensors, the target type of each, and
 * the output file. */
#ifndef LLMC_QUANT_QUANT_INTERNAL_H
#define LLMC_QUANT_QUANT_INTERNAL_H

#include <stdio.h>

#include "base/strbuf.h"
#include "formats/gguf_write.h"
#include "formats/safetensors.h"
#include "quant/quantize_model.h"

typedef struct QuantTensor {
	const GgufTensor *in; /* described as in a GGUF, for folders too */
	Dtype to;             /* block type of the rows; DT_NONE: bytes from folder_row */
	bool made;            /* converted; else copied */
	FolderPart part[FOLDER_PARTS];
	int n_part;            /* 0: GGUF */
	Dtype scale;           /* scale type of a folder's matrix */
	int64_t offset, bytes; /* in the data section of the output */
	bool done;
	CalibrationInput *input; /* input whose Hessian is used for rounding; NULL: none */
	const ImatrixEntry *importance;
	uint8_t *room; /* blocks of an MoE tensor while its experts are converted one at a time */
	/* times: column factors of a matrix; over: divisors of a norm's weights; NULL: none */
	const float *times, *over;
} QuantTensor;

typedef struct QuantRun {
	QuantJob *job;
	Arena *a;
	Gguf *g; /* NULL: the input is a folder */
	Safetensors *st;
	const char **ignored; /* modules that stay unquantised */
	int n_ignored;
	QuantTensor *t;
	int n;
	GgufHead head;
	Strbuf names; /* header of a folder's file */
	int64_t data_bytes;
	int64_t data_at; /* offset of the data in the file */
	int fd;
	FILE *done;
	const char *partial, *done_path, *folder; /* folder: folder that contains `partial` */
	Imatrix own;                              /* result of calibration */
	int64_t done_bytes;
} QuantRun;

static inline int64_t
rows_of(const GgufTensor *t)
{
	return t->dim[1] * t->dim[2] * t->dim[3];
}

enum { RUN_PASSES = 3 /* further passes of gptq_rows; more of them gain little */ };

/* quant_run.c */
QuantTensor *run_tensor(const QuantRun *r, const char *name); /* NULL: no tensor has the name */
/* Stores rows of t->to, in file order; for a folder they are converted to parts */
llmc_status run_keep_blocks(QuantRun *r, QuantTensor *t, const uint8_t *blocks, llmc_error *err);

/* quantize_experts.c */
/* Assigns the MoE input to tensors of experts, if run_experts supports their layout */
void run_moe_layers(QuantRun *r);
/* Rounds and stores all tensors of an MoE layer whose rows were captured (t->input is `in`) */
llmc_status run_experts(QuantRun *r, CalibrationInput *in, llmc_error *err);

/* choose_types.c */
/* Returns the importance of a tensor if the entry has the tensor's sizes */
const ImatrixEntry *run_importance(const QuantRun *r, const Imatrix *m, const GgufTensor *t);
llmc_status run_choose_types(QuantRun *r, llmc_error *err);
llmc_status run_choose_parts(QuantRun *r, llmc_error *err);

/* resume.c */
/* Resumes an earlier run, or creates the file. */
llmc_status run_open(QuantRun *r, llmc_error *err);
llmc_status run_keep(QuantRun *r, QuantTensor *t, const void *data, llmc_error *err);
llmc_status run_finish(QuantRun *r, llmc_error *err);

#endif
