/* llmc plan --timeline (plan_timeline.c) */
#ifndef LLMC_CLI_PLAN_TIMELINE_H
#define LLMC_CLI_PLAN_TIMELINE_H

#include "cli/cli.h"

/* Write a page with the timeline of a decode step of one row at this many positions. */
llmc_status plan_timeline(const char *path, const llmc_model *m, const llmc_gpu *gpu,
                          int32_t positions, llmc_error *err);

#endif
