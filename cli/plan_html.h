/* llmc plan --html (plan_html.c) */
#ifndef LLMC_CLI_PLAN_HTML_H
#define LLMC_CLI_PLAN_HTML_H

#include "cli/cli.h"

/* Write the page to path ("-": standard output). folder: artifact with the kernel sources to show;
 * gpu NULL: no predictions. */
llmc_status plan_html(const char *path, const llmc_model *m, const llmc_memory *mem,
                      const llmc_gpu *gpu, const char *folder, llmc_error *err);
void plan_html_forget(const char *folder); /* removes a folder that was created only for the page */

#endif
