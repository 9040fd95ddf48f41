/* Command line of llmc serve, with its configuration file and environment variables. */
#ifndef LLMC_CLI_SERVE_OPTIONS_H
#define LLMC_CLI_SERVE_OPTIONS_H

#include "cli/serve_models.h"

typedef struct ServeArgs {
	Common c;
	llmc_serve_options so;  /* timeouts, log and engine are filled in by the command */
	llmc_engine_options eo; /* limits, log and draft model are filled in by the command */
	int32_t speculate;
	int32_t slots, rank; /* --lora-slots, --lora-rank */
	char slots_set[40], rank_set[40];
	const char *sampling, *config, *key_file, *log_file, *model_name, *special, *additional;
	/* set_models: models of the configuration file or the environment */
	List models, set_models, loras;
	int64_t kv_tokens, image_cache;
	bool no_images, no_image_cache;
	float header_s, body_s, idle_s, request_s, drain_s, leave_s, sleep_s;
	char **argv; /* arguments merged from all sources */
	ServeModels all;
} ServeArgs;

/* Parse and check. *out is static memory: a process serves once. Returns 0, or the exit code after
 * printing an error. */
int serve_options(const Command *cmd, int argc, char **argv, ServeArgs **out);
void serve_options_free(ServeArgs *a);

#endif
