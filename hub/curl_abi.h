/* The part of libcurl's binary interface that llmc calls. The interface has been stable since
 * libcurl.so.4 of 2006, so building llmc needs no header; the library is opened at run time
 * (curl.c). */
#ifndef LLMC_CURL_ABI_H
#define LLMC_CURL_ABI_H

#include <stdint.h>

enum { CURL_ERROR_SIZE = 256, CURL_GLOBAL_DEFAULT = 3, CURLMSG_DONE = 1 };

/* Options: 0 + n take long, 10000 + n a pointer, 20000 + n a function. */
enum {
	CURLOPT_LOW_SPEED_LIMIT = 19,
	CURLOPT_LOW_SPEED_TIME = 20,
	CURLOPT_NOPROGRESS = 43,
	CURLOPT_CONNECTTIMEOUT = 78,
	CURLOPT_HTTP_VERSION = 84,
	CURLOPT_NOSIGNAL = 99,
	CURLOPT_TIMEOUT_MS = 155,
	CURLOPT_PROTOCOLS = 181,
	CURLOPT_TCP_KEEPALIVE = 213,
	CURLOPT_WRITEDATA = 10001,
	CURLOPT_URL = 10002,
	CURLOPT_PROXY = 10004,
	CURLOPT_RANGE = 10007,
	CURLOPT_ERRORBUFFER = 10010,
	CURLOPT_USERAGENT = 10018,
	CURLOPT_HTTPHEADER = 10023,
	CURLOPT_HEADERDATA = 10029,
	CURLOPT_XFERINFODATA = 10057,
	CURLOPT_CAINFO = 10065,
	CURLOPT_CAPATH = 10097,
	CURLOPT_PRIVATE = 10103,
	CURLOPT_OPENSOCKETDATA = 10164,
	CURLOPT_WRITEFUNCTION = 20011,
	CURLOPT_HEADERFUNCTION = 20079,
	CURLOPT_OPENSOCKETFUNCTION = 20163,
	CURLOPT_XFERINFOFUNCTION = 20219,
};
enum { CURL_HTTP_VERSION_1_1 = 2, CURLPROTO_HTTP_AND_HTTPS = 3 };

enum {
	CURLINFO_RESPONSE_CODE = 0x200002,
	CURLINFO_CONTENT_LENGTH_DOWNLOAD_T = 0x60000f,
	CURLINFO_PRIVATE = 0x100015,
	CURLINFO_REDIRECT_URL = 0x10001f,
};

enum {
	CURLE_OK = 0,
	CURLE_UNSUPPORTED_PROTOCOL = 1,
	CURLE_URL_MALFORMAT = 3,
	CURLE_COULDNT_RESOLVE_PROXY = 5,
	CURLE_COULDNT_RESOLVE_HOST = 6,
	CURLE_COULDNT_CONNECT = 7,
	CURLE_WRITE_ERROR = 23,
	CURLE_OPERATION_TIMEDOUT = 28,
	CURLE_ABORTED_BY_CALLBACK = 42,
	CURLE_SSL_CERTPROBLEM = 58,
	CURLE_PEER_FAILED_VERIFICATION = 60,
	CURLE_SSL_CACERT_BADFILE = 77,
	CURLE_SSL_ISSUER_ERROR = 83,
};

typedef struct CurlMessage {
	int msg;
	void *easy;
	union {
		void *whatever;
		int result;
	} data;
} CurlMessage;
_Static_assert(sizeof(CurlMessage) == 24, "libcurl's layout");

/* X(member, symbol, return type, arguments) */
#define CURL_CALLS(X)                                                                              \
	X(global_init, curl_global_init, int, (long flags))                                        \
	X(easy_init, curl_easy_init, void *, (void))                                               \
	X(easy_cleanup, curl_easy_cleanup, void, (void *easy))                                     \
	X(easy_setopt, curl_easy_setopt, int, (void *easy, int option, ...))                       \
	X(easy_perform, curl_easy_perform, int, (void *easy))                                      \
	X(easy_getinfo, curl_easy_getinfo, int, (void *easy, int info, ...))                       \
	X(easy_strerror, curl_easy_strerror, const char *, (int code))                             \
	X(slist_append, curl_slist_append, void *, (void *list, const char *text))                 \
	X(slist_free_all, curl_slist_free_all, void, (void *list))                                 \
	X(multi_init, curl_multi_init, void *, (void))                                             \
	X(multi_cleanup, curl_multi_cleanup, int, (void *multi))                                   \
	X(multi_add_handle, curl_multi_add_handle, int, (void *multi, void *easy))                 \
	X(multi_remove_handle, curl_multi_remove_handle, int, (void *multi, void *easy))           \
	X(multi_perform, curl_multi_perform, int, (void *multi, int *running))                     \
	X(multi_wait, curl_multi_wait, int,                                                        \
	  (void *multi, void *extra, unsigned n_extra, int timeout_ms, int *n_ready))              \
	X(multi_info_read, curl_multi_info_read, CurlMessage *, (void *multi, int *left))

typedef struct CurlCalls {
#define X(member, symbol, type, args) type(*member) args;
	CURL_CALLS(X)
#undef X
} CurlCalls;

#endif
