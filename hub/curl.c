/* Opens libcurl at run time: commands that download nothing do not load it, and a machine without
 * it can run local models. A build with LLMC_CURL_LINKED links libcurl. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "hub/hub.h"

#ifdef LLMC_CURL_LINKED
#define X(member, symbol, type, args) extern type symbol args;
CURL_CALLS(X)
#undef X

static llmc_status
find_calls(CurlCalls *c, llmc_error *err)
{
	(void)err;
#define X(member, symbol, type, args) c->member = symbol;
	CURL_CALLS(X)
#undef X
	return LLMC_OK;
}
#else
static llmc_status
find_calls(CurlCalls *c, llmc_error *err)
{
	static const char *const names[] = { "libcurl.so.4", "libcurl-gnutls.so.4", NULL };
	const char *own = getenv("LLMC_CURL"), *lacks = NULL;
	void *lib = NULL;

	if (own && *own)
		lib = dlopen(own, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (int i = 0; !(own && *own) && !lib && names[i]; i++)
		lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib)
		return error_set(err, LLMC_E_MISSING,
		                 "downloads need libcurl, and %s cannot be opened: install it "
		                 "(Debian: apt-get install libcurl4), or name it with "
		                 "LLMC_CURL=PATH; models on the disk run without it",
		                 own && *own ? own : names[0]);
#define X(member, symbol, type, args)                                                              \
	do {                                                                                       \
		void *at_ = dlsym(lib, #symbol);                                                   \
		memcpy(&c->member, &at_, sizeof at_);                                              \
		lacks = at_ || lacks ? lacks : #symbol;                                            \
	} while (0);
	CURL_CALLS(X)
#undef X
	if (lacks)
		return error_set(err, LLMC_E_MISSING,
		                 "libcurl has no %s: downloads need libcurl 7.32 or newer", lacks);
	return LLMC_OK;
}
#endif

llmc_status
hub_curl_open(Hub *h, llmc_error *err)
{
	if (h->curl_open)
		return LLMC_OK;
	TRY(find_calls(&h->curl, err));
	if (h->curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return error_set(err, LLMC_E_MISSING, "libcurl does not start");
	h->curl_open = true;
	return LLMC_OK;
}
