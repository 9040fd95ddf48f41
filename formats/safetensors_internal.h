/* Internals of the reader of safetensors checkpoints. */
#ifndef LLMC_FORMATS_SAFETENSORS_INTERNAL_H
#define LLMC_FORMATS_SAFETENSORS_INTERNAL_H

#include <jansson.h>

#include "base/arena.h"
#include "formats/name_table.h"
#include "formats/safetensors.h"

enum {
	MAX_HEADER_BYTES = 100 * 1000 * 1000,
	/* limit of the safetensors library */ MAX_CONFIG_BYTES = 8 << 20,
	MAX_SHARDS = 64
};

struct Safetensors {
	Arena arena;
	StTensor *tensor;
	NameEntry *name;
	size_t n, cap;
	QuantFormats *quant_formats; /* NULL: opened from memory, so there is no config.json */
};

/* safetensors_file.c */
/* Recognises weights of torch.save by name, since folders also hold other pickles
 * (training_args.bin, optimizer.pt, rng_state_0.pth). */
bool st_is_pickled(const char *path);
llmc_status st_json_failed(const char *file, const char *what, const json_error_t *e,
                           llmc_error *err);
/* Adds the tensors of one file. */
llmc_status st_read_file(Safetensors *s, const unsigned char *data, size_t size, const char *path,
                         llmc_error *err);
llmc_status st_map_file(Safetensors *s, const char *path, llmc_error *err);

/* safetensors_folder.c */
/* Sorts the names; rejects a name that occurs twice, in one or two shards. */
llmc_status st_index_names(Safetensors *s, llmc_error *err);
const char *st_folder_of(Safetensors *s, const char *path);
llmc_status st_open_index(Safetensors *s, const char *path, llmc_error *err);
llmc_status st_open_folder(Safetensors *s, const char *path, llmc_error *err);
/* Adds the linear layers that sentence-transformers keeps in folders of their own (2_Dense/), as
 * tensors 2_Dense.linear.weight. */
llmc_status st_open_modules(Safetensors *s, const char *path, llmc_error *err);

/* safetensors_quantised.c */
/* Replaces the tensors of each quantised matrix by one tensor; names stay sorted. */
llmc_status st_make_matrices(Safetensors *s, const char *folder, llmc_error *err);

#endif
