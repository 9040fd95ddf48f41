/* Between the files of a quantisation that runs: its tensors, what each becomes, and the file that
 * grows. */
#ifndef LLMC_QUANT_QUANT_INTERNAL_H
#define LLMC_QUANT_QUANT_INTERNAL_H

#include <stdio.h>

#include "base/strbuf.h"
#include "formats/gguf_write.h"
#include "formats/safetensors.h"
#include "quant/quantize_model.h"

typedef struct QuantTensor {
	const GgufTensor *in; /* as a GGUF says it, of a folder too */
	Dtype to;             /* blocks that rows become; DT_NONE: bytes of folder_row */
	bool made;            /* else it is copied */
	FolderPart part[FOLDER_PARTS];
	int n_part;            /* 0: GGUF */
	Dtype scale;           /* of a folder's matrix */
	int64_t offset, bytes; /* in the data of the output */
	bool done;
	CalibrationInput *input; /* whose Hessian it is rounded by; NULL: none */
	const ImatrixEntry *importance;
	uint8_t *room; /* blocks of a mixture's tensor while its experts are made in turn */
	const float *times, *over; /* factors of columns, of a matrix; what a norm's weights are
	                              divided by; NULL: none */
} QuantTensor;

typedef struct QuantRun {
	QuantJob *job;
	Arena *a;
	Gguf *g; /* NULL: a folder */
	Safetensors *st;
	const char **ignored; /* modules that stay as they are */
	int n_ignored;
	QuantTensor *t;
	int n;
	GgufHead head;
	Strbuf names; /* the head of a folder's file */
	int64_t data_bytes;
	int64_t data_at; /* of the file */
	int fd;
	FILE *done;
	const char *partial, *done_path, *folder; /* folder: that partial lies in */
	Imatrix own;                              /* what calibration found */
	int64_t done_bytes;
} QuantRun;

static inline int64_t
rows_of(const GgufTensor *t)
{
	return t->dim[1] * t->dim[2] * t->dim[3];
}

enum { RUN_PASSES = 3 /* over rows that compensation has rounded: more find little */ };

/* quantize_model.c */
QuantTensor *run_tensor(const QuantRun *r, const char *name); /* NULL: none has the name */
/* rows of t->to, as the file has them: in a folder, parts are made of them */
llmc_status run_keep_blocks(QuantRun *r, QuantTensor *t, const uint8_t *blocks, llmc_error *err);

/* quantize_experts.c */
/* Tensors of experts get the mixture as their input, where they lie in a form that run_experts
 * takes */
void run_moe_layers(QuantRun *r);
/* Round all tensors of a mixture whose rows were kept (t->input is in), and keep them */
llmc_status run_experts(QuantRun *r, CalibrationInput *in, llmc_error *err);

/* choose_types.c */
/* An entry for a tensor, when its sizes are the tensor's */
const ImatrixEntry *run_importance(const QuantRun *r, const Imatrix *m, const GgufTensor *t);
llmc_status run_choose_types(QuantRun *r, llmc_error *err);
llmc_status run_choose_parts(QuantRun *r, llmc_error *err);

/* resume.c */
/* Take up what an earlier run has left, or begin. */
llmc_status run_open(QuantRun *r, llmc_error *err);
llmc_status run_keep(QuantRun *r, QuantTensor *t, const void *data, llmc_error *err);
llmc_status run_finish(QuantRun *r, llmc_error *err);

#endif
