/* The models that llmc serve is given: --model NAME=PATH, --lora NAME=DIR. */
#ifndef LLMC_CLI_SERVE_MODELS_H
#define LLMC_CLI_SERVE_MODELS_H

#include "cli/cli.h"

typedef struct ServeModel {
	char *name; /* owned; NULL: the model's own */
	const char *path;
	bool adapter; /* of the first one */
	Common common;
	OpenOptions options;
	llmc_limits limits;
	llmc_engine_options engine;
} ServeModel;

typedef struct ServeModels {
	ServeModel **model;
	size_t n;
	llmc_serve_model *init; /* [n] after serve_models_init */
	llmc_log_fn log;        /* for warnings while the server runs */
	void *log_user;
} ServeModels;

/* From a command line; 0, or the exit code of a complaint that has been made. */
int serve_models(const Command *cmd, const Common *c, const char *first, const List *more,
                 const List *loras, const char *model_name, ServeModels *all);
/* What llmc_serve_open_models takes, by the settings that all share; slots: the first one has slots
 * for its adapters; false: out of memory. Stays where it is until the server is closed. */
bool serve_models_init(ServeModels *all, const llmc_engine_options *eo, const llmc_limits *lim,
                       bool slots);
void serve_models_free(ServeModels *all);

#endif
