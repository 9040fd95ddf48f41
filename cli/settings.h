/* Settings from a YAML file (--config), environment variables and the command line; the last wins. */
#ifndef LLMC_CLI_SETTINGS_H
#define LLMC_CLI_SETTINGS_H

#include "cli/cli.h"

/* The arguments with those of the file and the environment in front. A variable is prefix + NAME of the option in
 * capitals, as LLMC_SERVE_PORT. *model: what the file or the environment names, or NULL. Prints and exits on mistakes. */
char **settings_merge(const char *prefix, const Opt *opt, size_t n_opt, int argc, char **argv, int *n_out,
                      const char **model);

#endif
