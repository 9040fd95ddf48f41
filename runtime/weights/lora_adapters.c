/* LoRA adapters in slots: the adapter of each slot, its reference count, and its elements. A slot
 * is reserved under the lock, written while no sequence uses it, and becomes visible to sequences
 * when it is complete. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sum64.h"
#include "formats/peft.h"
#include "runtime/comm/comm.h"
#include "runtime/state/session_state.h"

typedef struct AdapterSlot {
	int32_t number; /* adapter id; 0: free; below 0: being written */
	int32_t holders;
	bool dropped; /* unloaded: becomes free when `holders` is 0 */
	uint64_t key;
	/* if ranks are processes: the adapter's files, open until the other ranks have received the
	 * slot */
	Peft *peft;
	bool sent; /* sent to the other ranks */
} AdapterSlot;

typedef struct Adapters {
	pthread_mutex_t lock;
	int n;
	int32_t last; /* last assigned id */
	AdapterSlot slot[];
} Adapters;

static const PlanTensor *
a_factor(const Plan *p)
{
	for (int i = 0; i < p->n_tensor; i++)
		if (p->tensor[i].factor)
			return &p->tensor[i];
	return NULL;
}

llmc_status
adapters_open(Runtime *rt, llmc_error *err)
{
	const PlanTensor *t = a_factor(rt->plan);

	if (!t)
		return LLMC_OK;
	for (int i = 0; i < rt->plan->n_tensor; i++)
		if (rt->plan->tensor[i].factor && rt->plan->tensor[i].slots != t->slots)
			return error_set(
			    err, LLMC_E_INPUT, "tensor %s has %d slots, tensor %s has %d",
			    rt->plan->tensor[i].id, rt->plan->tensor[i].slots, t->id, t->slots);
	Adapters *a = rt->adapters = calloc(1, sizeof *a + (size_t)t->slots * sizeof *a->slot);
	if (!a)
		return error_set(err, LLMC_E_MEMORY, "out of memory for adapter slots");
	pthread_mutex_init(&a->lock, NULL);
	a->n = t->slots;
	return LLMC_OK;
}

void
adapters_close(Runtime *rt)
{
	for (int i = 0; rt->adapters && i < rt->adapters->n; i++)
		peft_close(rt->adapters->slot[i].peft);
	if (rt->adapters)
		pthread_mutex_destroy(&rt->adapters->lock);
	free(rt->adapters);
	rt->adapters = NULL;
}

/* ---- elements ---- */

/* An adapter's factors for a matrix. Row i of the source is row first + i / block * stride + i %
 * block of the left factor (block and stride: lora_block, lora_stride). The right factor is [rank,
 * cols]. */
typedef struct DeltaSlice {
	const PeftDelta *d;
	const float *right;
	int64_t first;
} DeltaSlice;

static llmc_status
fits_rank(const PlanTensor *t, const char *module, const PeftDelta *d, llmc_error *err)
{
	if (d->rank <= t->rank)
		return LLMC_OK;
	return error_set(err, LLMC_E_INPUT,
	                 "%s: the adapter has rank %lld, a slot has rank %d: open the model with "
	                 "adapters.%s=%lld",
	                 module, (long long)d->rank, t->rank, t->experts ? "expert_rank" : "rank",
	                 (long long)d->rank);
}

/* Find the factors for a source and check its rows; d NULL: the adapter has none. */
static llmc_status
find_delta(Peft *peft, const PlanTensor *t, const PlanSource *s, DeltaSlice *out, llmc_error *err)
{
	const int64_t n = s->n_block * s->block;

	*out = (DeltaSlice){ .first = s->lora_first };
	TRY(peft_delta(peft, s->lora, s->rows, s->col_total ? s->col_total : s->cols, &out->d,
	               err));
	if (!out->d)
		return LLMC_OK;
	if (s->lora_first + (n - 1) / s->lora_block * s->lora_stride + (n - 1) % s->lora_block >=
	    s->rows)
		return error_set(
		    err, LLMC_E_INPUT,
		    "tensor %s: the plan uses rows that the adapter's %s does not have", t->id,
		    s->lora);
	out->right = out->d->right;
	return fits_rank(t, s->lora, out->d, err);
}

/* Find the factors for expert e if the adapter has one factor for all experts; else d is NULL. */
static llmc_status
find_stacked(Peft *peft, const PlanTensor *t, const PlanSource *s, int e, DeltaSlice *out,
             llmc_error *err)
{
	const char *param = strchr(s->name, '#');
	const int64_t cols = s->col_total ? s->col_total : s->cols;
	char stem[1024], name[1024];

	*out = (DeltaSlice){ .first = e * s->stride + s->first };
	if (!param ||
	    snprintf(stem, sizeof stem, "%.*s", (int)(param - s->name), s->name) >=
	        (int)sizeof stem ||
	    !peft_experts(peft, stem, param + 1, s->stride, cols, name, sizeof name))
		return LLMC_OK;
	TRY(peft_delta(peft, name, t->all_experts * s->stride, cols, &out->d, err));
	if (!out->d || !out->d->each)
		return LLMC_OK;
	out->right = out->d->right + e * out->d->rank * cols;
	return fits_rank(t, name, out->d, err);
}

/* Find the factors for expert e if the adapter has a module per expert; else d is NULL. */
static llmc_status
find_expert(Peft *peft, const PlanTensor *t, const PlanSource *s, int e, DeltaSlice *out,
            llmc_error *err)
{
	const char *hole = strstr(s->lora, "{e}");
	char name[1024];

	*out = (DeltaSlice){ 0 };
	if (!hole || snprintf(name, sizeof name, "%.*s%d%s", (int)(hole - s->lora), s->lora, e,
	                      hole + 3) >= (int)sizeof name)
		return LLMC_OK;
	PlanSource own = *s;
	own.lora = name;
	return find_delta(peft, t, &own, out, err);
}

/* Find the factors for expert e of the tensor, or for the whole matrix if the tensor has no
 * experts. */
static llmc_status
find_source(Peft *peft, const PlanTensor *t, const PlanSource *s, int e, DeltaSlice *out,
            llmc_error *err)
{
	if (!t->experts)
		return find_delta(peft, t, s, out, err);
	TRY(find_stacked(peft, t, s, t->first_expert + e, out, err));
	return out->d ? LLMC_OK : find_expert(peft, t, s, t->first_expert + e, out, err);
}

/* Write [rank, cols] of factor A or [rank, rows] of factor B, padded with zeros up to the slot's
 * rank. */
static void
fill(const PlanTensor *t, const PlanSource *s, const DeltaSlice *f, float *to)
{
	const int64_t rank = f->d ? f->d->rank : 0, n = s->n_block * s->block;

	memset(to, 0, (size_t)(t->rank * (t->factor == FACTOR_A ? s->cols : n)) * sizeof *to);
	for (int64_t k = 0; t->factor == FACTOR_A && k < rank; k++)
		memcpy(to + k * s->cols, f->right + k * f->d->cols + s->col_first,
		       (size_t)s->cols * sizeof *to);
	for (int64_t i = 0; t->factor == FACTOR_B && i < n; i++) {
		const int64_t row =
		    f->first + i / s->lora_block * s->lora_stride + i % s->lora_block;
		for (int64_t k = 0; k < rank; k++)
			to[k * n + i] = f->d->left[row * rank + k];
	}
}

/* Number of elements of a slot: [experts][sources][rank][...] */
static int64_t
slot_elems(const PlanTensor *t)
{
	return t->rows / t->slots;
}

/* Write a tensor's slot to `to`; if `to` is NULL, only check that the adapter fits. *any becomes
 * true if the adapter changes the tensor; may be NULL. */
static llmc_status
make_slot(const PlanTensor *t, Peft *peft, float *to, bool *any, llmc_error *err)
{
	const int n = t->experts ? t->experts : 1;
	const int64_t each = slot_elems(t) / n / t->n_src;

	for (int e = 0; e < n; e++)
		for (int k = 0; k < t->n_src; k++) {
			DeltaSlice f;
			TRY(find_source(peft, t, &t->src[k], e, &f, err));
			if (any && f.d)
				*any = true;
			if (to)
				fill(t, &t->src[k], &f, to + (e * (int64_t)t->n_src + k) * each);
		}
	return LLMC_OK;
}

/* Check that the adapter fits the plan of a rank. *most: elements of the largest slot */
static llmc_status
fits(const Plan *p, Peft *peft, bool *any, int64_t *most, llmc_error *err)
{
	for (int i = 0; i < p->n_tensor; i++)
		if (p->tensor[i].factor) {
			TRY(make_slot(&p->tensor[i], peft, NULL, any, err));
			*most =
			    slot_elems(&p->tensor[i]) > *most ? slot_elems(&p->tensor[i]) : *most;
		}
	return LLMC_OK;
}

/* Write the adapter to the slot of a rank, through a buffer for the largest slot. */
static llmc_status
write_rank(Runtime *rt, Peft *peft, int slot, float *room, llmc_error *err)
{
	for (int i = 0; i < rt->plan->n_tensor; i++) {
		const PlanTensor *t = &rt->plan->tensor[i];
		if (!t->factor)
			continue;
		const size_t bytes = (size_t)slot_elems(t) * sizeof *room;
		TRY(make_slot(t, peft, room, NULL, err));
		TRY(rt->device->put(rt->model, i, (int64_t)bytes * slot, room, bytes, err));
	}
	return LLMC_OK;
}

/* Check that the adapter fits all ranks, and write it to the slots of this process's ranks. */
static llmc_status
write_slot(Runtime *rt, Peft *peft, const char *folder, int slot, llmc_error *err)
{
	const int n = rt->n_rank ? rt->n_rank : 1;
	int64_t most = 1;
	bool any = false;

	for (int r = 0; r < n; r++)
		TRY(fits(rt->n_rank ? rt->rank[r]->plan : rt->plan, peft, &any, &most, err));
	for (int r = 1; r < rt->n_all; r++)
		TRY(fits(rt->all[r], peft, &any, &most, err));
	if (peft_unused(peft))
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: the adapter changes %s, for which this model has no slot: slots "
		    "are for projections of attention, of dense feed-forwards and of "
		    "shared experts, with adapters.expert_rank of routed ones; try to "
		    "merge it into the weights (lora.path, --lora DIR)",
		    folder, peft_unused(peft));
	if (!any)
		return error_set(err, LLMC_E_INPUT, "%s: the adapter changes nothing", folder);
	float *room = malloc((size_t)most * sizeof *room);
	llmc_status status =
	    room ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory for an adapter");
	for (int r = 0; r < n && status == LLMC_OK; r++)
		status = write_rank(rt->n_rank ? rt->rank[r] : rt, peft, slot, room, err);
	free(room);
	return status;
}

/* ---- ranks as processes: rank 0 reads the adapter and sends the slots to the others before their
 * first step with it ---- */

/* Message header, followed by the bytes of a tensor's slot. rank below 0: end of the messages. sum:
 * checksum of the adapter factors in the rank's plan */
typedef struct SlotRecord {
	int32_t rank, tensor;
	int64_t bytes;
	uint64_t sum;
} SlotRecord;

static uint64_t
factors_sum(const Plan *p)
{
	uint64_t sum = 11;

	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		const int64_t fact[] = { i,       t->factor,  t->rows,         t->slots,
			                 t->rank, t->experts, t->first_expert, t->n_src };
		if (!t->factor)
			continue;
		sum = sum64(fact, sizeof fact, sum);
		sum = sum64(t->id, strlen(t->id), sum);
	}
	return sum;
}

static bool
send_to_rank(const Plan *p, int rank, Peft *peft, Comm *comm)
{
	const uint64_t sum = factors_sum(p);
	bool ok = true;

	for (int i = 0; i < p->n_tensor && ok; i++) {
		const PlanTensor *t = &p->tensor[i];
		if (!t->factor)
			continue;
		const SlotRecord head = { rank, i, slot_elems(t) * (int64_t)sizeof(float), sum };
		float *room = malloc((size_t)head.bytes);
		ok = room && make_slot(t, peft, room, NULL, NULL) == LLMC_OK &&
		     comm_send(comm, &head, sizeof head) &&
		     comm_send(comm, room, (size_t)head.bytes);
		free(room);
	}
	return ok;
}

bool
adapters_has_slot(const Runtime *rt, int slot)
{
	return rt->adapters && slot >= 0 && slot < rt->adapters->n;
}

bool
adapters_known(const Runtime *rt, int slot)
{
	return !rt->world || slot < 0 || rt->adapters->slot[slot].sent;
}

void
adapters_send(Runtime *rt, int slot, Comm *comm)
{
	AdapterSlot *s = &rt->adapters
	                      /* the caller's sequence holds a reference to the adapter, so no other
	                       * thread writes to the slot */
	                      ->slot[slot];
	bool ok = true;

	for (int r = 1; r < rt->n_all && ok; r++)
		ok = send_to_rank(rt->all[r], r, s->peft, comm);
	s->sent = ok && comm_send(comm, &(SlotRecord){ .rank = -1 }, sizeof(SlotRecord));
	if (!s->sent)
		comm_end(comm); /* end the group: the other ranks would wait forever */
}

llmc_status
adapters_receive(Runtime *rt, int slot, Comm *comm, llmc_error *err)
{
	const Plan *p = rt->plan;
	llmc_status status = LLMC_OK;
	SlotRecord head;

	while (status == LLMC_OK && comm_receive(comm, &head, sizeof head) && head.rank >= 0) {
		const PlanTensor *t = head.rank == comm_rank(comm) && head.tensor >= 0 &&
		                              head.tensor < p->n_tensor &&
		                              p->tensor[head.tensor].factor
		                          ? &p->tensor[head.tensor]
		                          : NULL;
		char *bytes = head.bytes > 0 ? malloc((size_t)head.bytes) : NULL;
		if (!bytes)
			return error_set(err, LLMC_E_MEMORY,
			                 "out of memory for an adapter of %lld bytes",
			                 (long long)head.bytes);
		bool received = comm_receive(comm, bytes, (size_t)head.bytes);
		if (received && head.rank == comm_rank(comm) &&
		    (head.sum != factors_sum(p) || !t ||
		     head.bytes != slot_elems(t) * (int64_t)sizeof(float)))
			status = error_set(err, LLMC_E_INPUT,
			                   "rank 0 has another plan for this rank's adapter slots: "
			                   "compile the artifact again for all ranks");
		else if (received && t)
			status = rt->device->put(rt->model, head.tensor, head.bytes * slot, bytes,
			                         (size_t)head.bytes, err);
		free(bytes);
	}
	return status;
}

/* Hash the files and the scale of an adapter, independent of its folder. */
static llmc_status
files_key(const char *folder, double scale, uint64_t *key, llmc_error *err)
{
	static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
	uint64_t sum = sum64(&scale, sizeof scale, 7);
	Strbuf path = { 0 };
	llmc_status status = LLMC_OK;

	for (size_t i = 0; i < sizeof files / sizeof *files && status == LLMC_OK; i++) {
		FileMap map = { 0 };
		strbuf_clear(&path);
		file_join(&path, folder, files[i]);
		status = file_map(strbuf_str(&path), &map, err);
		if (status == LLMC_OK)
			sum = sum64(map.data, map.size, sum);
		file_unmap(&map);
	}
	strbuf_release(&path);
	*key = sum | 1;
	return status;
}

/* ---- slots ---- */

static AdapterSlot *
find(Adapters *a, int32_t number)
{
	for (int i = 0; a && number > 0 && i < a->n; i++)
		if (a->slot[i].number == number)
			return &a->slot[i];
	return NULL;
}

static void
release_unused(AdapterSlot *s)
{
	if (!s->dropped || s->holders)
		return;
	peft_close(s->peft);
	*s = (AdapterSlot){ 0 };
}

llmc_status
runtime_adapter_load(Runtime *rt, const char *folder, double scale, int32_t *adapter,
                     llmc_error *err)
{
	Adapters *a = rt->adapters;
	Peft *peft = NULL;
	uint64_t key, now;
	int at = 0;

	*adapter = 0;
	if (!a)
		return error_set(err, LLMC_E_INPUT,
		                 "this model has no slots for adapters: open it with "
		                 "adapters.slots=4, for example");
	if (rt->world && !rt->n_all)
		return error_set(err, LLMC_E_RANGE,
		                 "this is not rank 0, which loads adapters for all ranks");
	TRY(files_key(folder, scale, &key, err));
	TRY(peft_open(folder, scale, &peft, err));
	llmc_status status = files_key(folder, scale, &now, err);
	if (status == LLMC_OK && now != key)
		status = error_set(err, LLMC_E_INPUT, "%s: the adapter changed while it was read",
		                   folder);
	if (status != LLMC_OK)
		goto fail;
	pthread_mutex_lock(&a->lock);
	while (at < a->n && a->slot[at].number)
		at++;
	if (at < a->n)
		a->slot[at].number = -1;
	pthread_mutex_unlock(&a->lock);
	if (at == a->n) {
		status = error_set(err, LLMC_E_FULL,
		                   "all %d adapter slots are in use, by adapters or by "
		                   "sequences of unloaded ones; raise adapters.slots",
		                   a->n);
		goto fail;
	}
	status = write_slot(rt, peft, folder, at, err);
	pthread_mutex_lock(&a->lock);
	a->slot[at] =
	    (AdapterSlot){ .number = status == LLMC_OK ? *adapter = ++a->last : 0, .key = key };
	if (rt->world && status == LLMC_OK) {
		a->slot[at].peft = peft;
		peft = NULL;
	}
	pthread_mutex_unlock(&a->lock);
fail:
	peft_close(peft);
	return status;
}

static llmc_status
not_loaded(int32_t adapter, llmc_error *err)
{
	return error_set(err, LLMC_E_RANGE, "there is no adapter %d in this model", adapter);
}

llmc_status
runtime_adapter_drop(Runtime *rt, int32_t adapter, llmc_error *err)
{
	Adapters *a = rt->adapters;
	AdapterSlot *s;

	if (!a)
		return not_loaded(adapter, err);
	pthread_mutex_lock(&a->lock);
	s = find(a, adapter);
	if (s && s->dropped)
		s = NULL;
	if (s) {
		s->dropped = true;
		release_unused(s);
	}
	pthread_mutex_unlock(&a->lock);
	return s ? LLMC_OK : not_loaded(adapter, err);
}

llmc_status
runtime_adapter_ref(Runtime *rt, int32_t adapter, bool again, llmc_error *err)
{
	Adapters *a = rt->adapters;
	AdapterSlot *s;

	if (!adapter)
		return LLMC_OK;
	if (!a)
		return not_loaded(adapter, err);
	pthread_mutex_lock(&a->lock);
	s = find(a, adapter);
	if (s && s->dropped && !(again && s->holders))
		s = NULL;
	if (s)
		s->holders++;
	pthread_mutex_unlock(&a->lock);
	return s ? LLMC_OK : not_loaded(adapter, err);
}

void
runtime_adapter_unref(Runtime *rt, int32_t adapter)
{
	Adapters *a = rt->adapters;
	AdapterSlot *s;

	if (!adapter || !a)
		return;
	pthread_mutex_lock(&a->lock);
	s = find(a, adapter);
	if (s && s->holders > 0) {
		s->holders--;
		release_unused(s);
	}
	pthread_mutex_unlock(&a->lock);
}

/* Return the slot of an adapter, -1 if none, and its key. */
static int
look_up(const Runtime *rt, int32_t adapter, uint64_t *key)
{
	Adapters *a = rt->adapters;

	*key = 0;
	if (!a || !adapter)
		return -1;
	pthread_mutex_lock(&a->lock);
	const AdapterSlot *s = find(a, adapter);
	const int at = s ? (int)(s - a->slot) : -1;
	*key = s ? s->key : 0;
	pthread_mutex_unlock(&a->lock);
	return at;
}

int
adapter_slot(const Runtime *rt, int32_t adapter)
{
	uint64_t key;

	return look_up(rt, adapter, &key);
}

uint64_t
adapter_key(const Runtime *rt, int32_t adapter)
{
	uint64_t key;

	look_up(rt, adapter, &key);
	return key;
}

int32_t
adapter_of_key(Runtime *rt, uint64_t key)
{
	Adapters *a = rt->adapters;
	int32_t number = 0;

	if (!a)
		return 0;
	pthread_mutex_lock(&a->lock);
	for (int i = 0; i < a->n && !number; i++)
		if (a->slot[i].number > 0 && a->slot[i].key == key &&
		    (!a->slot[i].dropped || a->slot[i].holders)) {
			number = a->slot[i].number;
			a->slot[i].holders++;
		}
	pthread_mutex_unlock(&a->lock);
	return number;
}
