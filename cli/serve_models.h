/* Models of llmc serve: --model NAME=PATH, --lora NAME=DIR. */
#ifndef LLMC_CLI_SERVE_MODELS_H
#define LLMC_CLI_SERVE_MODELS_H

#include "cli/cli.h"

typedef struct ServeModel {
	char *name; /* owned; NULL: the model's own name */
	const char *path;
	bool adapter; /* adapter of the first model */
	Common common;
	OpenOptions options;
	llmc_limits limits;
	llmc_engine_options engine;
} ServeModel;

typedef struct ServeModels {
	ServeModel **model;
	size_t n;
	llmc_serve_model *init; /* [n] after serve_models_init */
	/* options of models that the command line does not name */
	ServeModel found;
	llmc_serve_model found_init;
	llmc_log_fn log; /* receives warnings while the server runs */
	void *log_user;
} ServeModels;

/* Parse the models of a command line. Returns 0, or the exit code after printing an error. */
int serve_models(const Command *cmd, const Common *c, const char *first, const List *more,
                 const List *loras, const char *model_name, ServeModels *all);
/* Fill all->init and all->found_init for llmc_serve_open_models; all models share the options.
 * first: limits of the first model and of adapters in its slots; others: limits of the other
 * models, where 0 lets each model choose. slots: the first model has adapter slots. `all` must not
 * move until the server is closed. */
llmc_status serve_models_init(ServeModels *all, const llmc_engine_options *eo,
                              const llmc_limits *first, const llmc_limits *others, bool slots,
                              llmc_error *err);
void serve_models_free(ServeModels *all);

#endif
