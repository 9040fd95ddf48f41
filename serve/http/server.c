/* Opening and closing of a server, and the public calls. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/dialects/chat_template.h"
#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/http/api_keys.h"
#include "serve/http/trace.h"
#include "serve/models/catalogue.h"
#include "serve/models/model.h"
#include "base/sized_struct.h"

enum { UPLOAD_HEADS = 16384 }; /* bytes of an upload's body in addition to the file */

static bool
is_loopback(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >>
		        24) == 127;
	return a->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static llmc_status
listen_on(Server *s, llmc_error *err)
{
	const char *host = s->opt.host;
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list = NULL;
	char port[16];
	llmc_status status = LLMC_OK;

	snprintf(port, sizeof port, "%d", s->opt.port);
	int rc = getaddrinfo(host, port, &hint, &list);
	if (rc != 0)
		return error_set(
		    err, LLMC_E_INPUT,
		    "host %s: %s; give an address of this machine, such as 127.0.0.1 or 0.0.0.0",
		    host, gai_strerror(rc));
	if (!is_loopback(list->ai_addr) && !(s->opt.api_key && *s->opt.api_key) && !s->keys &&
	    !s->opt.allow_remote) {
		freeaddrinfo(list);
		return error_set(err, LLMC_E_INPUT,
		                 "host %s is reachable from other machines: set an API key "
		                 "(--api-key), or allow access without a key (--allow-remote)",
		                 host);
	}
	int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 511) != 0) {
		status = error_set(err, LLMC_E_IO, "cannot listen on %s port %s: %s%s", host, port,
		                   strerror(errno),
		                   errno == EADDRINUSE ? "; choose another with --port" : "");
		if (fd >= 0)
			close(fd);
	} else {
		struct sockaddr_storage a = { 0 };
		socklen_t n = sizeof a;
		s->listen_fd = fd;
		s->loopback = is_loopback(list->ai_addr);
		if (getsockname(fd, (struct sockaddr *)&a, &n) == 0)
			s->port =
			    ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
			                                  : ((struct sockaddr_in *)&a)->sin_port);
		const char *own = !strcmp(host, "0.0.0.0") ? "127.0.0.1"
		                  : !strcmp(host, "::")    ? "::1"
		                                        /* clients cannot connect to a wildcard
		                                         * address */
		                                        : host;
		snprintf(s->url, sizeof s->url,
		         strchr(own, ':') ? "http://[%s]:%d" : "http://%s:%d", own, s->port);
	}
	freeaddrinfo(list);
	return status;
}

static llmc_status
take_template_defaults(Server *s, llmc_error *err)
{
	const char *text = s->opt.chat_template_kwargs, *key = NULL;
	json_error_t why;

	s->opt.chat_template_kwargs = NULL; /* the text is not kept */
	if (!text || !*text)
		return LLMC_OK;
	s->template_defaults = json_parse(text, strlen(text), 0, &why, NULL);
	if (!s->template_defaults)
		return error_set(err, LLMC_E_INPUT, "chat_template_kwargs: %s", why.text);
	if (!json_is_object(s->template_defaults))
		return error_set(err, LLMC_E_INPUT,
		                 "chat_template_kwargs: expected a JSON object such as "
		                 "{\"enable_thinking\": false}");
	if ((key = template_reserved(s->template_defaults)) != NULL)
		return error_set(err, LLMC_E_INPUT,
		                 "chat_template_kwargs: '%s' is a field of requests", key);
	return LLMC_OK;
}

static llmc_status
set_options(Server *s, const llmc_serve_options *in, llmc_error *err)
{
	llmc_serve_options *o = &s->opt;
	struct rlimit files;

	memset(o, 0, sizeof *o);
	SIZED_TAKE(*o, in);
	o->host = strdup(o->host && *o->host ? o->host : "127.0.0.1");
	o->api_key = o->api_key && *o->api_key ? strdup(o->api_key) : NULL;
	o->allow_host = o->allow_host && *o->allow_host ? strdup(o->allow_host) : NULL;
	o->allow_origin = o->allow_origin && *o->allow_origin ? strdup(o->allow_origin) : NULL;
	o->lora_dir = o->lora_dir && *o->lora_dir ? strdup(o->lora_dir) : NULL;
	o->allow_image_urls =
	    o->allow_image_urls && *o->allow_image_urls ? strdup(o->allow_image_urls) : NULL;
	o->batch_dir = o->batch_dir && *o->batch_dir ? strdup(o->batch_dir) : NULL;
	o->weights_dir = o->weights_dir && *o->weights_dir ? strdup(o->weights_dir) : NULL;
	o->models_dir = o->models_dir && *o->models_dir ? strdup(o->models_dir) : NULL;
	o->aliases = o->aliases && *o->aliases ? strdup(o->aliases) : NULL;
	TRY(take_template_defaults(s, err));
	if (o->otlp)
		TRY(trace_open(s, o->otlp, &s->trace, err));
	o->otlp = NULL;
	if (o->keys)
		TRY(keys_open(o->keys, &s->keys, err));
	o->keys = NULL;       /* not kept: the file has been read */
	o->model_name = NULL; /* not kept: the first slot has a copy */
	if (!o->host)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
#define DEFAULT(field, value)                                                                      \
	do {                                                                                       \
		if (o->field == 0)                                                                 \
			o->field = value;                                                          \
		if (o->field < 0)                                                                  \
			return error_set(err, LLMC_E_INPUT, #field " is negative");                \
	} while (0)
	/* 0: this option and the next one are derived from the model */
	DEFAULT(max_total_tokens, 0);
	DEFAULT(max_input_length, 0);
	DEFAULT(max_best_of, 2);
	DEFAULT(max_stop_sequences, 4);
	DEFAULT(max_top_n_tokens, 5);
	DEFAULT(validation_workers, 2);
	DEFAULT(max_body_bytes, 0); /* 0: derived from the models */
	DEFAULT(batch_dir_bytes, LLMC_DEFAULT_BATCH_DIR_BYTES);
	DEFAULT(max_connections, 1000);
	DEFAULT(max_connections_per_client, 0);
	DEFAULT(header_timeout_s, 10);
	DEFAULT(body_timeout_s, 60);
	DEFAULT(idle_timeout_s, 75);
	DEFAULT(request_timeout_s, 0);
	DEFAULT(image_pixels, (int64_t)64 << 20);
	DEFAULT(max_images, LLMC_DEFAULT_IMAGES);
#undef DEFAULT
	o->image_cache_bytes = o->image_cache_bytes < 0    ? 0
	                       : o->image_cache_bytes == 0 ? LLMC_DEFAULT_IMAGE_CACHE_BYTES
	                                                   : o->image_cache_bytes;
	if (o->port < 0 || o->port > 65535)
		return error_set(err, LLMC_E_INPUT, "port %d: expected 0 to 65535", o->port);
	if (o->validation_workers > MAX_WORKERS)
		return error_set(err, LLMC_E_INPUT, "validation_workers %d: at most %d",
		                 o->validation_workers, MAX_WORKERS);
	if (o->memory_bytes < 0 || !(o->sleep_after_s >= 0))
		return error_set(err, LLMC_E_INPUT, "memory_bytes or sleep_after_s is negative");
	if (o->max_top_n_tokens > LLMC_MAX_TOP)
		return error_set(err, LLMC_E_INPUT, "max_top_n_tokens %d: at most %d",
		                 o->max_top_n_tokens, LLMC_MAX_TOP);
	if (o->max_body_bytes > 1 << 30)
		return error_set(err, LLMC_E_INPUT, "max_body_bytes: at most 1 GiB");
	if (o->idle_timeout_s < 1)
		o->idle_timeout_s =
		    1; /* a shorter time would close connections between two requests of a client */
	/* leave descriptors for model files, logs and name resolution */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY &&
	    (rlim_t)o->max_connections + 32 > files.rlim_cur) {
		int32_t fit = files.rlim_cur > 64 ? (int32_t)files.rlim_cur - 32
		                                  : (int32_t)files.rlim_cur / 2;
		serve_log(s, LLMC_LOG_WARNING,
		          "warning: the limit of %llu open files allows %d connections, not %d",
		          (unsigned long long)files.rlim_cur, fit, o->max_connections);
		o->max_connections = fit < 1 ? 1 : fit;
	}
	return LLMC_OK;
}

/* Set the limits of bodies and of their memory. Images make bodies larger, and a model of the
 * catalogue may read images. */
static void
set_body_limits(Server *s)
{
	enum { TEXT = 2 << 20, IMAGES = 20 << 20, LEAST_HELD = 256 << 20 };
	bool images = catalogue_is_on(s);

	for (int i = 0; i < s->n_slots; i++)
		images |= s->slot[i]->about.info.reads_images;
	s->max_body = s->opt.max_body_bytes ? (size_t)s->opt.max_body_bytes
	              : images              ? IMAGES
	                                    : TEXT;
	s->max_held = 32 * s->max_body > LEAST_HELD ? 32 * s->max_body : LEAST_HELD;
}

llmc_status
server_open(const Backend *b, const llmc_serve_options *opt, Server **out, llmc_error *err)
{
	SlotInit one = { .name = opt ? opt->model_name : NULL, .back = b };

	return server_open_models(&one, 1, opt, out, err);
}

llmc_status
server_open_models(const SlotInit *init, int n, const llmc_serve_options *opt, Server **out,
                   llmc_error *err)
{
	bool taken = false;
	Server *s = calloc(1, sizeof *s);
	llmc_status status;

	*out = NULL;
	if (!s) {
		for (int i = 0; i < n; i++)
			models_drop(&init[i]);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	s->listen_fd = -1;
	s->started = time(NULL);
	s->routes = serve_routes;
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->log_lock, NULL);
	pthread_cond_init(&s->work, NULL);
	clock_cond_init(&s->idle);
	clock_cond_init(&s->keep);
	TRY_GOTO(set_options(s, opt, err));
	TRY_GOTO(listen_on(s, err));
	taken = true;
	TRY_GOTO(models_open(s, init, n, err));
	set_body_limits(s);
	if (s->opt.batch_dir) {
		TRY_GOTO(store_open(s, s->opt.batch_dir, s->opt.batch_dir_bytes, &s->store, err));
		s->max_upload = (size_t)s->store->max_file + UPLOAD_HEADS;
	}
	TRY_GOTO(work_open(s, err));
	TRY_GOTO(net_open(s, err));
	if (s->store)
		TRY_GOTO(batch_start(s->store, err));
	*out = s;
	return LLMC_OK;
fail:
	for (int i = 0; i < n && !taken; i++)
		models_drop(&init[i]);
	server_close(s);
	return status;
}

int
server_port(const Server *s)
{
	return s->port;
}

void
server_drain(Server *s)
{
	s->leaving = true;
}

void
server_stop(Server *s)
{
	pthread_mutex_lock(&s->lock);
	bool first = !s->draining;
	s->draining = true;
	pthread_mutex_unlock(&s->lock);
	if (first && s->listen_fd >= 0)
		shutdown(s->listen_fd, SHUT_RDWR); /* new connections are refused from here on */
}

bool
server_wait(Server *s, int timeout_ms)
{
	struct timespec t;

	clock_after(&t, timeout_ms);
	pthread_mutex_lock(&s->lock);
	while (s->n_active &&
	       (timeout_ms < 0 ? pthread_cond_wait(&s->idle, &s->lock)
	                       : pthread_cond_timedwait(&s->idle, &s->lock, &t)) == 0)
		;
	bool none = s->n_active == 0;
	pthread_mutex_unlock(&s->lock);
	return none;
}

void
server_close(Server *s)
{
	if (!s)
		return;
	server_stop(s);
	pthread_mutex_lock(&s->lock);
	s->closing = true;
	pthread_mutex_unlock(&s->lock);
	net_wake(s); /* the HTTP thread cancels running requests */
	batch_stop(s->store);
	models_stop(s);
	work_close(s);
	weights_wait(s);
	/* after this no request is in an engine: the event threads have taken the last events */
	models_end(s);
	s->ended = true;
	net_close(s);
	trace_close(s->trace);
	for (Req *list[] = { s->small.first, s->large.first }, **l = list; l < list + 2;
	     l++) /* requests that arrived after the workers had ended */
		for (Req *r = *l, *next; r; r = next) {
			next = r->next;
			req_unref(r);
		}
	models_close(s);
	store_close(s->store);
	if (s->listen_fd >= 0)
		close(s->listen_fd);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->idle);
	pthread_cond_destroy(&s->keep);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->log_lock);
	free((char *)(uintptr_t)s->opt.host);
	free((char *)(uintptr_t)s->opt.api_key);
	free((char *)(uintptr_t)s->opt.allow_origin);
	free((char *)(uintptr_t)s->opt.allow_host);
	free((char *)(uintptr_t)s->opt.lora_dir);
	free((char *)(uintptr_t)s->opt.allow_image_urls);
	free((char *)(uintptr_t)s->opt.batch_dir);
	free((char *)(uintptr_t)s->opt.models_dir);
	free((char *)(uintptr_t)s->opt.aliases);
	json_decref(s->template_defaults);
	free((char *)(uintptr_t)s->opt.weights_dir);
	keys_close(s->keys);
	free(s);
}
