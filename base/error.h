/* Errors are sentences returned through the caller's llmc_error. Nothing in the library prints. */
#ifndef LLMC_BASE_ERROR_H
#define LLMC_BASE_ERROR_H

#include "llmc.h"

/* Format a message into *err (may be NULL) and return `code`, for use as `return error_set(...)`.
 * Messages may quote files, servers and requests, so characters that control a terminal or would
 * forge a log line become '?'. */
llmc_status error_set(llmc_error *err, llmc_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Prefix the message in *err with "<formatted text>: ". */
void error_prefix(llmc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Return the status of `call` if it is not LLMC_OK. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		llmc_status try_status_ = (call);                                                  \
		if (try_status_ != LLMC_OK)                                                        \
			return try_status_;                                                        \
	} while (0)

/* Like TRY, but go to `fail:` with the status in the local variable `status`. */
#define TRY_GOTO(call)                                                                             \
	do {                                                                                       \
		status = (call);                                                                   \
		if (status != LLMC_OK)                                                             \
			goto fail;                                                                 \
	} while (0)

#endif
