/* Several models in one server: engines are opened and closed while requests use them, fail to
 * open, are put to sleep, reload, get adapters and lose them. Every request is answered, engines
 * never exceed the memory budget, none is closed while it has work, and none leaks. The engines are
 * fakes. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "serve/models/model.h"
#include "tempdir.h"
#include "tests/serve/fake_engine.h"
#include "text/text.h"
#include "waiting.h"

enum { BUDGET = 60, N_MODELS = 4, N_CLIENTS = 5, N_ASKED = 40, SLOTS = 1 };

/* An assertion that also works on threads other than the test's */
#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

static const char vocabulary[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":"
    "\"BPE\",\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"\\u0120\":3},\"merges\":[]},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
    "\"decoder\":{\"type\":\"ByteLevel\"}}";
static llmc_tokenizer *tokenizer;
static Tempdir dir;

typedef struct MpiWorld {
	atomic_int bytes, n_engines, n_sources, n_opened; /* current, current, current, total */
	atomic_int opening;    /* engines being opened that wait at the gate */
	atomic_bool gate;      /* closed: no engine opens, and no adapter is read */
	atomic_bool hold_open; /* no engine opens */
	atomic_int fail_every; /* every n-th opening fails; 0: none */
	atomic_bool shares;  /* adapters are names in one of PLACES slots of their model's engine */
	atomic_int adapting; /* adapters being read that wait at the gate */
	atomic_bool catalogue; /* the server has --models-dir */
} MpiWorld;
static MpiWorld world;

typedef struct Origin {
	const char *name;
	int bytes;
	atomic_int users; /* calls that read it */
	char own[16];     /* storage of the name of a model of the catalogue */
} Origin;                 /* the `self` of a Source */
typedef struct Engine {
	Fake fake;
	int bytes;
	atomic_int taken;
} Engine;

static llmc_status
look(void *self, Backend *about, int64_t *bytes, llmc_error *err)
{
	const Origin *o = self;
	Fake f;

	(void)err;
	fake_init(&f, tokenizer, 64);
	*about = fake_backend(&f, 64);
	snprintf(about->info.name, sizeof about->info.name, "%s", o->name);
	*bytes = o->bytes;
	return LLMC_OK;
}

static llmc_status
open_engine(void *self, Backend *out, llmc_error *err)
{
	Origin *o = self;

	atomic_fetch_add(&o->users, 1);
	atomic_fetch_add(&world.opening, 1);
	WAIT_FOR(!atomic_load(&world.gate) && !atomic_load(&world.hold_open));
	atomic_fetch_sub(&world.opening, 1);
	atomic_fetch_sub(&o->users, 1);
	int n = atomic_fetch_add(&world.n_opened, 1);
	int every = atomic_load(&world.fail_every);
	if (every && n % every == 0)
		return error_set(err, LLMC_E_IO, "%s: no such file", o->name);
	Engine *e = calloc(1, sizeof *e);
	fake_init(&e->fake, tokenizer, 64);
	e->bytes = o->bytes;
	*out = fake_backend(&e->fake, 64);
	out->places = SLOTS;
	MUST(atomic_fetch_add(&world.bytes, e->bytes) + e->bytes <= BUDGET);
	atomic_fetch_add(&world.n_engines, 1);
	return LLMC_OK;
}

static void
close_engine(Backend *b)
{
	Engine *e = b->self;

	MUST(e->fake.n_live == 0);
	atomic_fetch_sub(&world.bytes, e->bytes);
	atomic_fetch_sub(&world.n_engines, 1);
	free(e->fake.held);
	free(e);
}

static void
free_source(void *self)
{
	MUST(!atomic_load(&((Origin *)self)->users));
	atomic_fetch_sub(&world.n_sources, 1);
	free(self);
}

static llmc_status adapt(void *self, const char *path, ModelSource *out, llmc_error *err);
static llmc_status sibling(void *self, const char *path, ModelSource *out, llmc_error *err);

static ModelSource
source(const char *name, int bytes)
{
	Origin *o = calloc(1, sizeof *o);

	*o = (Origin){ .name = name, .bytes = bytes };
	atomic_fetch_add(&world.n_sources, 1);
	return (ModelSource){ .self = o,
		              .look = look,
		              .open = open_engine,
		              .close = close_engine,
		              .free = free_source,
		              .sibling = sibling,
		              .adapt = adapt };
}

static llmc_status
sibling(void *self, const char *path, ModelSource *out, llmc_error *err)
{
	(void)self;
	(void)err;
	*out = source("", 10);
	Origin *o = out->self;
	snprintf(o->own, sizeof o->own, "%s", strrchr(path, '/') + 1);
	o->name = o->own;
	return LLMC_OK;
}

static llmc_status
join_engine(void *self, const Backend *of, Backend *out, llmc_error *err)
{
	Engine *e = of->self;
	int every = atomic_load(&world.fail_every);

	(void)self;
	if (every && atomic_fetch_add(&world.n_opened, 1) % every == 0)
		return error_set(err, LLMC_E_IO, "no such file");
	MUST(atomic_fetch_add(&e->taken, 1) < SLOTS);
	*out = *of;
	return LLMC_OK;
}

static void
leave_engine(Backend *b)
{
	atomic_fetch_sub(&((Engine *)b->self)->taken, 1);
}

static llmc_status
adapt(void *self, const char *path, ModelSource *out, llmc_error *err)
{
	Origin *o = self;

	if (!strcmp(strrchr(path, '/') + 1, "other"))
		return error_set(err, LLMC_E_INPUT, "an adapter of another model");
	atomic_fetch_add(&o->users, 1);
	atomic_fetch_add(&world.adapting, 1);
	WAIT_FOR(!atomic_load(&world.gate));
	atomic_fetch_sub(&world.adapting, 1);
	atomic_fetch_sub(&o->users, 1);
	*out = source("adapted", o->bytes);
	if (world.shares) {
		out->join = join_engine;
		out->close = leave_engine;
	}
	return LLMC_OK;
}

static Server *
begin(int n)
{
	static const char *const names[N_MODELS] = { "a", "b", "c", "d" };
	llmc_serve_options o = LLMC_INIT(llmc_serve_options);
	SlotInit init[N_MODELS] = { 0 };
	llmc_error err = { 0 };
	Server *s;

	o.memory_bytes = BUDGET;
	o.lora_dir = dir.path;
	o.models_dir = world.catalogue ? dir.path : NULL;
	for (int i = 0; i < n; i++)
		init[i] = (SlotInit){ .name = names[i], .src = source(names[i], 10 * (i + 1)) };
	if (server_open_models(init, n, &o, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return s;
}

static void
end(Server *s)
{
	server_stop(s);
	assert_true(server_wait(s, -1));
	server_close(s);
	assert_int_equal(world.n_engines, 0);
	assert_int_equal(world.n_sources, 0);
	assert_int_equal(world.bytes, 0);
	world = (MpiWorld){ 0 };
}

/* Send one request on a connection of its own; returns its status, with the answer in `response`.
 * leave: do not wait for the answer; returns 0. */
static int
send_request(const Server *s, const char *method, const char *path, const char *body, bool leave,
             char *response, size_t cap)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		                  .sin_port = htons((uint16_t)server_port(s)),
		                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status = 0;
	char text[1024];
	size_t n = 0;
	ssize_t k;

	MUST(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
	int len = snprintf(text, sizeof text,
	                   "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
	                   "application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
	                   method, path, strlen(body), body);
	MUST(len < (int)sizeof text && write(fd, text, (size_t)len) == len);
	if (leave) {
		close(fd);
		return 0;
	}
	while (n + 1 < cap && (k = read(fd, response + n, cap - 1 - n)) > 0)
		n += (size_t)k;
	response[n] = 0;
	while (n + 1 == cap && read(fd, text, sizeof text) > 0)
		;
	close(fd);
	MUST(sscanf(response, "HTTP/1.1 %d", &status) == 1);
	return status;
}

static int
complete(const Server *s, const char *model, char *response, size_t cap)
{
	char body[200];

	snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":[1,2],\"max_tokens\":3}", model);
	int status = send_request(s, "POST", "/v1/completions", body, false, response, cap);
	MUST(status != 200 || strstr(response, "\"completion_tokens\":3"));
	return status;
}

typedef struct Client {
	const Server *s;
	uint32_t state;
	pthread_t thread;
} Client;

static uint32_t
roll(Client *c, uint32_t n)
{
	c->state = c->state * 1664525u + 1013904223u;
	return (c->state >> 16) % n;
}

static void *
client(void *arg)
{
	static const char *const models[] = { "a", "b", "c", "d", "x", "y", "b:latest", "tgi" },
	                         *const calls[] = { "sleep", "wake_up", "reload" };
	static const char *const reads[] = { "/metrics",     "/v1/models", "/status.json",
		                             "/is_sleeping", "/health",    "/get_load",
		                             "/v1/models/x" };
	Client *c = arg;
	char response[65536], text[200];

	for (int i = 0; i < N_ASKED; i++) {
		const char *model = models[roll(c, 8)];
		uint32_t what = roll(c, 20);
		int status;
		if (what < 11) {
			status = complete(c->s, model, response, sizeof response);
			MUST(status == 200 || status == 404 || status == 503);
		} else if (what < 13) {
			snprintf(
			    text, sizeof text,
			    "{\"model\":\"%s\",\"prompt\":[1,2],\"max_tokens\":50,\"stream\":true}",
			    model);
			send_request(c->s, "POST", "/v1/completions", text, true, NULL, 0);
		} else if (what < 15) {
			snprintf(text, sizeof text, "/%s?model=%s", calls[roll(c, 3)], model);
			status =
			    send_request(c->s, "POST", text, "", false, response, sizeof response);
			MUST(status == 200 || status == 400 || status == 404 || status == 503);
		} else if (what < 17) {
			snprintf(text, sizeof text, "{\"lora_name\":\"%s\",\"lora_path\":\"%s\"}",
			         roll(c, 2) ? "x" : "y", roll(c, 4) ? "one" : "other");
			status = send_request(c->s, "POST", "/v1/load_lora_adapter", text, false,
			                      response, sizeof response);
			MUST(status == 200 || status == 400);
		} else if (what < 18) {
			snprintf(text, sizeof text, "{\"lora_name\":\"%s\"}",
			         roll(c, 2) ? "x" : "y");
			status = send_request(c->s, "POST", "/v1/unload_lora_adapter", text, false,
			                      response, sizeof response);
			MUST(status == 200 || status == 404);
		} else {
			status = send_request(c->s, "GET", reads[roll(c, 7)], "", false, response,
			                      sizeof response);
			MUST(status == 200 || status == 404);
		}
	}
	return NULL;
}

static void
run_concurrent_clients(bool shares)
{
	Client c[N_CLIENTS];
	char response[4096];

	Server *s = begin(N_MODELS);
	world.shares = shares;
	atomic_store(&world.fail_every, 7);
	for (int i = 0; i < N_CLIENTS; i++) {
		c[i] = (Client){ .s = s, .state = (uint32_t)i + 1 };
		assert_int_equal(pthread_create(&c[i].thread, NULL, client, &c[i]), 0);
	}
	for (int i = 0; i < N_CLIENTS; i++)
		pthread_join(c[i].thread, NULL);
	atomic_store(&world.fail_every, 0);
	for (int i = 0; i < N_MODELS;
	     i++) { /* one opening may still fail, because it was decided before */
		char name[2] = { (char)('a' + i), 0 };
		assert_true(complete(s, name, response, sizeof response) == 200 ||
		            complete(s, name, response, sizeof response) == 200);
	}
	end(s);
}

static void
concurrent_requests_to_several_models(void **state)
{
	(void)state;
	run_concurrent_clients(false);
}

static void
concurrent_requests_to_adapters_of_one_engine(void **state)
{
	(void)state;
	run_concurrent_clients(true);
}

/* More names than slots: each is served, and none evicts a name that has work. */
static void
more_adapters_than_slots(void **state)
{
	static char response[1 << 20];

	(void)state;
	Server *s = begin(1);
	world.shares = true;
	for (int i = 0; i < 3; i++) {
		char body[100];
		snprintf(body, sizeof body, "{\"lora_name\":\"n%d\",\"lora_path\":\"one\"}", i);
		assert_int_equal(send_request(s, "POST", "/v1/load_lora_adapter", body, false,
		                              response, sizeof response),
		                 200);
	}
	for (int i = 0; i < 12; i++) {
		char name[8];
		snprintf(name, sizeof name, "n%d", i * 2 % 3);
		assert_int_equal(complete(s, name, response, sizeof response), 200);
	}
	assert_int_equal(
	    send_request(s, "POST", "/reload?model=n0", "", false, response, sizeof response), 200);
	assert_int_equal(
	    send_request(s, "POST", "/reload?model=n0", "", false, response, sizeof response), 200);
	assert_int_equal(send_request(s, "GET", "/metrics", "", false, response, sizeof response),
	                 200);
	assert_non_null(strstr(response, "max_lora=\"1\""));
	assert_int_equal(complete(s, "n1", response, sizeof response), 200);
	world.fail_every = 1;
	assert_int_equal(
	    send_request(s, "POST", "/reload?model=n1", "", false, response, sizeof response), 400);
	assert_int_equal(complete(s, "n1", response, sizeof response), 503);
	world.fail_every = 0;
	assert_int_equal(complete(s, "n1", response, sizeof response), 200);
	end(s);
}

/* ---- step by step, with the model manager held at the gate ---- */

static void
wait_until(bool (*is_so)(Server *), Server *s)
{
	WAIT_FOR(is_so(s));
}

static bool
is_at_the_gate(Server *s)
{
	(void)s;
	return world.opening > 0;
}

static bool
reload_is_queued(Server *s)
{
	bool waits = false;

	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++)
		waits |= s->slot[i]->reloads.first != NULL;
	pthread_mutex_unlock(&s->lock);
	return waits;
}

static bool
adding_is_queued(Server *s)
{
	pthread_mutex_lock(&s->lock);
	bool waits = s->adding != NULL;
	pthread_mutex_unlock(&s->lock);
	return waits;
}

static bool
is_closing(Server *s)
{
	return s->closing;
}

static bool
has_no_engine(Server *s)
{
	(void)s;
	return world.n_engines == 0;
}

typedef struct Call {
	const Server *s;
	const char *method, *path, *body;
	int status;
	char response[4096];
	pthread_t thread;
} Call;

static void *
run_call(void *arg)
{
	Call *c = arg;

	c->status =
	    send_request(c->s, c->method, c->path, c->body, false, c->response, sizeof c->response);
	return NULL;
}

static void
start(Call *c, const Server *s, const char *method, const char *path, const char *body)
{
	*c = (Call){ .s = s, .method = method, .path = path, .body = body };
	assert_int_equal(pthread_create(&c->thread, NULL, run_call, c), 0);
}

static void
start_call(Call *c, const Server *s, const char *path, const char *body)
{
	start(c, s, "POST", path, body);
}

static int
finish_call(Call *c)
{
	pthread_join(c->thread, NULL);
	return c->status;
}

#define ADD "{\"lora_name\":\"x\",\"lora_path\":\"one\"}"
#define FOR_X "{\"model\":\"x\",\"prompt\":[1],\"max_tokens\":2}"

static void
an_adapter_is_unloaded_while_it_opens(void **state)
{
	static Call c;
	char response[4096];

	(void)state;
	Server *s = begin(1);
	assert_int_equal(
	    send_request(s, "POST", "/v1/load_lora_adapter", ADD, false, response, sizeof response),
	    200);
	assert_int_equal(send_request(s, "POST", "/sleep", "", false, response, sizeof response),
	                 200);
	assert_int_equal(world.n_engines, 0);
	world.gate = true;
	start_call(&c, s, "/v1/completions", FOR_X);
	wait_until(is_at_the_gate, s);
	assert_int_equal(send_request(s, "POST", "/v1/unload_lora_adapter", ADD, false, response,
	                              sizeof response),
	                 200);
	world.gate = false;
	assert_int_equal(finish_call(&c), 404);
	wait_until(has_no_engine, s);
	assert_int_equal(complete(s, "x", response, sizeof response), 404);
	assert_int_equal(
	    send_request(s, "POST", "/v1/load_lora_adapter", ADD, false, response, sizeof response),
	    200);
	assert_int_equal(complete(s, "x", response, sizeof response), 200);
	end(s);
}

static void
an_adapter_is_unloaded_before_its_reload(void **state)
{
	static Call c[2];
	char response[4096];

	(void)state;
	Server *s = begin(1);
	assert_int_equal(
	    send_request(s, "POST", "/v1/load_lora_adapter", ADD, false, response, sizeof response),
	    200);
	world.gate = true;
	start_call(&c[0], s, "/v1/completions",
	           "{\"model\":\"a\",\"prompt\":[1],\"max_tokens\":2}");
	wait_until(is_at_the_gate, s);
	start_call(&c[1], s, "/reload?model=x", "");
	wait_until(reload_is_queued, s);
	assert_int_equal(send_request(s, "POST", "/v1/unload_lora_adapter", ADD, false, response,
	                              sizeof response),
	                 200);
	world.gate = false;
	assert_int_equal(finish_call(&c[0]), 200);
	assert_int_equal(finish_call(&c[1]), 404);
	assert_int_equal(send_request(s, "POST", "/sleep", "", false, response, sizeof response),
	                 200);
	assert_int_equal(world.n_engines, 0);
	end(s);
}

static bool
will_sleep(Server *s)
{
	pthread_mutex_lock(&s->lock);
	bool is = s->slot[0]->sleep_when_done;
	pthread_mutex_unlock(&s->lock);
	return is;
}

static bool
wake_is_queued(Server *s)
{
	pthread_mutex_lock(&s->lock);
	bool waits = s->slot[0]->wakers.first != NULL;
	pthread_mutex_unlock(&s->lock);
	return waits;
}

/* Requests that wait for the model are served, and the call returns after it has been unloaded. A
 * request after that call loads it again. */
static void
a_model_sleeps_while_it_opens(void **state)
{
	static Call c[3];
	char response[4096];

	(void)state;
	Server *s = begin(2);
	/* unload one model, all models, and one that is loaded again immediately */
	for (int wake = 0; wake < 3; wake++) {
		world.gate = true;
		start_call(&c[0], s, "/v1/completions",
		           "{\"model\":\"a\",\"prompt\":[1],\"max_tokens\":2}");
		wait_until(is_at_the_gate, s);
		start_call(&c[1], s, wake == 1 ? "/sleep" : "/sleep?model=a", "");
		wait_until(will_sleep, s);
		if (wake == 2) {
			start_call(&c[2], s, "/wake_up?model=a", "");
			wait_until(wake_is_queued, s);
		}
		world.gate = false;
		for (int i = 0; i < 2 + (wake == 2); i++)
			assert_int_equal(finish_call(&c[i]), 200);
		assert_int_equal(world.n_engines, wake == 2);
	}
	assert_int_equal(send_request(s, "POST", "/sleep", "", false, response, sizeof response),
	                 200);
	assert_int_equal(world.n_engines, 0);
	end(s);
}

/* An engine that is opened for an adapter, which shares it with its model, is also opened only
 * once, and not leaked. */
static void
a_model_sleeps_while_it_opens_for_an_adapter(void **state)
{
	static Call c[2];
	char response[4096];

	(void)state;
	for (int all = 0; all < 2; all++) {
		Server *s = begin(1);
		world.shares = true;
		assert_int_equal(send_request(s, "POST", "/v1/load_lora_adapter", ADD, false,
		                              response, sizeof response),
		                 200);
		assert_int_equal(
		    send_request(s, "POST", "/sleep", "", false, response, sizeof response), 200);
		assert_int_equal(world.n_engines, 0);
		const int before = world.n_opened;
		world.gate = true;
		start_call(&c[0], s, "/v1/completions", FOR_X);
		wait_until(is_at_the_gate, s);
		start_call(&c[1], s, all ? "/sleep" : "/sleep?model=a", "");
		wait_until(will_sleep, s);
		world.gate = false;
		assert_int_equal(finish_call(&c[0]), 200);
		assert_int_equal(finish_call(&c[1]), 200);
		assert_int_equal(world.n_engines, 0);
		assert_int_equal(world.n_opened, before + 1);
		end(s);
	}
}

static void *
close_server(void *s)
{
	server_close(s);
	return NULL;
}

static void
the_server_ends_while_an_engine_opens(void **state)
{
	static Call c[2];
	pthread_t thread;

	(void)state;
	Server *s = begin(2);
	world.gate = true;
	start_call(&c[0], s, "/v1/completions",
	           "{\"model\":\"b\",\"prompt\":[1],\"max_tokens\":2}");
	wait_until(is_at_the_gate, s);
	start_call(&c[1], s, "/reload?model=a", "");
	wait_until(reload_is_queued, s);
	assert_int_equal(pthread_create(&thread, NULL, close_server, s), 0);
	wait_until(is_closing, s);
	world.gate = false;
	for (int i = 0; i < 2; i++) {
		int status = finish_call(&c[i]);
		assert_true(status == 503 || (i == 0 && status == 200));
	}
	pthread_join(thread, NULL);
	assert_int_equal(world.n_engines, 0);
	assert_int_equal(world.n_sources, 0);
	world = (MpiWorld){ 0 };
}

/* Adapters that cannot be opened take no names, and special characters in names are escaped in logs
 * and metrics. */
static void
names_of_adapters(void **state)
{
	static char response[1 << 20];
	char body[200];

	(void)state;
	Server *s = begin(1);
	world.fail_every = 1;
	for (int i = 0; i < MAX_MODELS + 10; i++) {
		snprintf(body, sizeof body, "{\"lora_name\":\"n%d\",\"lora_path\":\"one\"}", i);
		assert_int_equal(send_request(s, "POST", "/v1/load_lora_adapter", body, false,
		                              response, sizeof response),
		                 400);
		assert_non_null(strstr(response, "no such file"));
	}
	world.fail_every = 0;
	assert_int_equal(
	    send_request(s, "POST", "/v1/load_lora_adapter",
	                 "{\"lora_name\":\"\\t\\u0001\\n\\\\\\\"\\u00e9\",\"lora_path\":\"one\"}",
	                 false, response, sizeof response),
	    200);
	assert_int_equal(send_request(s, "GET", "/metrics", "", false, response, sizeof response),
	                 200);
	assert_non_null(
	    strstr(response, "tgi_request_count{model_name=\" t u0001\\n\\\\\\\"\xc3\xa9\"} 0\n"));
	assert_non_null(strstr(response, "tgi_request_count{model_name=\"a\"} 0\n"));
	assert_null(strstr(response, "\"n1\""));
	end(s);
}

static bool
is_adapting(Server *s)
{
	(void)s;
	return world.adapting > 0;
}

static bool
has_slot(Server *s, const char *name)
{
	bool has = false;

	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++)
		has |= !s->slot[i]->removed && !strcmp(s->slot[i]->name, name);
	pthread_mutex_unlock(&s->lock);
	return has;
}

static bool
has_m(Server *s)
{
	return has_slot(s, "m");
}

static bool
lacks_m(Server *s)
{
	return !has_slot(s, "m");
}

#define FOR_M "{\"model\":\"m\",\"prompt\":[1],\"max_tokens\":2}"

/* The name of the model is used again while the manager thread reads the adapter. */
static void
a_model_is_deleted_while_an_adapter_of_it_is_read(void **state)
{
	static Call c[3];
	char response[4096];

	(void)state;
	world.catalogue = true;
	Server *s = begin(1);
	assert_int_equal(complete(s, "m", response, sizeof response), 200);
	world.gate = true;
	start_call(&c[0], s, "/v1/load_lora_adapter",
	           "{\"lora_name\":\"x\",\"lora_path\":\"one\",\"base_model_name\":\"m\"}");
	wait_until(is_adapting, s);
	start(&c[1], s, "DELETE", "/v1/models/m", "");
	wait_until(lacks_m, s);
	start_call(&c[2], s, "/v1/completions", FOR_M);
	wait_until(has_m, s);
	world.gate = false;
	for (int i = 0; i < 3; i++)
		assert_int_equal(finish_call(&c[i]), 200);
	assert_int_equal(complete(s, "x", response, sizeof response), 200);
	assert_int_equal(complete(s, "m", response, sizeof response), 200);
	/* a call that was queued before the deletion finds no model */
	world.gate = true;
	start_call(&c[0], s, "/v1/load_lora_adapter",
	           "{\"lora_name\":\"y\",\"lora_path\":\"one\",\"base_model_name\":\"a\"}");
	wait_until(is_adapting, s);
	start_call(&c[1], s, "/v1/load_lora_adapter",
	           "{\"lora_name\":\"z\",\"lora_path\":\"one\",\"base_model_name\":\"m\"}");
	wait_until(adding_is_queued, s);
	start(&c[2], s, "DELETE", "/v1/models/m", "");
	wait_until(lacks_m, s);
	world.gate = false;
	assert_int_equal(finish_call(&c[0]), 200);
	assert_int_equal(finish_call(&c[1]), 400);
	assert_non_null(strstr(c[1].response, "its model has been unloaded"));
	assert_int_equal(finish_call(&c[2]), 200);
	end(s);
}

/* While the engine of a new name is tried, the slot of the name must not go to another model. */
static void
a_model_of_the_catalogue_is_added_while_an_adapter_opens(void **state)
{
	static Call c[2];
	char response[4096];

	(void)state;
	world.catalogue = true;
	Server *s = begin(1);
	world.gate = true;
	start_call(&c[0], s, "/v1/load_lora_adapter", ADD);
	wait_until(is_adapting, s);
	world.gate = false;
	assert_int_equal(finish_call(&c[0]), 200);
	world.fail_every = 1; /* the slot of the name is used again */
	assert_int_equal(send_request(s, "POST", "/v1/load_lora_adapter",
	                              "{\"lora_name\":\"y\",\"lora_path\":\"one\"}", false,
	                              response, sizeof response),
	                 400);
	world.fail_every = 0;
	world.hold_open = true;
	start_call(&c[0], s, "/v1/load_lora_adapter",
	           "{\"lora_name\":\"y\",\"lora_path\":\"one\"}");
	wait_until(is_at_the_gate, s);
	start_call(&c[1], s, "/v1/completions", FOR_M);
	wait_until(has_m, s);
	world.hold_open = false;
	assert_int_equal(finish_call(&c[0]), 200);
	assert_int_equal(finish_call(&c[1]), 200);
	static const char *const names[] = { "a", "x", "y", "m" };
	for (int i = 0; i < 4; i++) {
		assert_int_equal(complete(s, names[i], response, sizeof response), 200);
		char model[32];
		snprintf(model, sizeof model, "\"model\":\"%s\"", names[i]);
		assert_non_null(strstr(response, model));
	}
	end(s);
}

static int
setup(void **state)
{
	llmc_error err;

	(void)state;
	if (tempdir_open(&dir) != 0 || mkdir(tempdir_file(&dir, "one"), 0700) != 0 ||
	    mkdir(tempdir_file(&dir, "other"), 0700) != 0 ||
	    mkdir(tempdir_file(&dir, "m"), 0700) != 0 ||
	    file_write(tempdir_file(&dir, "m/config.json"), "{}", 2, &err) != LLMC_OK)
		return -1;
	return text_open_json(vocabulary, sizeof vocabulary - 1, "test", &tokenizer, &err) ==
	               LLMC_OK
	           ? 0
	           : -1;
}

static int
teardown(void **state)
{
	(void)state;
	llmc_tokenizer_close(tokenizer);
	tempdir_close(&dir);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(concurrent_requests_to_several_models),
		cmocka_unit_test(concurrent_requests_to_adapters_of_one_engine),
		cmocka_unit_test(more_adapters_than_slots),
		cmocka_unit_test(an_adapter_is_unloaded_while_it_opens),
		cmocka_unit_test(an_adapter_is_unloaded_before_its_reload),
		cmocka_unit_test(a_model_sleeps_while_it_opens),
		cmocka_unit_test(a_model_sleeps_while_it_opens_for_an_adapter),
		cmocka_unit_test(the_server_ends_while_an_engine_opens),
		cmocka_unit_test(names_of_adapters),
		cmocka_unit_test(a_model_is_deleted_while_an_adapter_of_it_is_read),
		cmocka_unit_test(a_model_of_the_catalogue_is_added_while_an_adapter_opens),
	};

	alarm((unsigned)wait_scaled(WAIT_HANG_S)); /* nothing here may hang */
	return cmocka_run_group_tests(tests, setup, teardown);
}
