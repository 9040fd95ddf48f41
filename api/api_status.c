/* Status names, and small helpers of api/. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"

const char *
llmc_version(void)
{
	return LLMC_VERSION;
}

const char *
llmc_status_name(llmc_status s)
{
	switch (s) {
#define X(name, value, text)                                                                       \
	case LLMC_##name:                                                                          \
		return "LLMC_" #name;
		LLMC_STATUS_LIST(X)
#undef X
	}
	return "LLMC_?";
}

const char *
llmc_status_text(llmc_status s)
{
	switch (s) {
#define X(name, value, text)                                                                       \
	case LLMC_##name:                                                                          \
		return text;
		LLMC_STATUS_LIST(X)
#undef X
	}
	return "unknown status";
}

const char *
llmc_finish_name(llmc_finish f)
{
	static const char *const name[LLMC_FINISH_COUNT] = { "length", "eos",   "stop",
		                                             "cancel", "token", "deadline" };

	return (unsigned)f < LLMC_FINISH_COUNT ? name[f] : "?";
}

llmc_status
copy_out(const char *s, size_t n, char *buf, size_t cap, size_t *need, llmc_error *err)
{
	if (need)
		*need = n;
	if (cap <= n)
		return error_set(err, LLMC_E_RANGE,
		                 "buffer of %zu bytes is too small: %zu are needed", cap, n + 1);
	memcpy(buf, s, n);
	buf[n] = 0;
	return LLMC_OK;
}
