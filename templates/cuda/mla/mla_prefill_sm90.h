/* Keys and values of a round of latent attention (cuda/mla/mla_prefill.h) on sm_90a, for 16-bit
 * weights. One launch computes both GEMMs, in sequence, on the same ring of stages
 * (cuda/gemm/gemm_sm90.h). */
#ifndef LLMC_CUDA_MLA_MLA_PREFILL_SM90_H
#define LLMC_CUDA_MLA_MLA_PREFILL_SM90_H

#include "cuda/gemm/gemm_sm90.h"
#include "cuda/mla/mla_prefill.h"

/* Rows of act in the layout of the GEMM's stages */
template <class G> struct mla_act_stages {
	DEV gemm90_act<G>
	at(unsigned short *act, int t, int n)
	{
		return gemm90_act<G>(act, t, n);
	}
};

/* k, v: operands of the two GEMMs over the same rows of act, each with a tensor map of boxes of 64
 * rows; take_k, take_v: the epilogues of the GEMMs */
template <class KG, class VG, class TK, class TV, class EK, class EV> DEV void
mla90_expand_by(gemm90_shared_storage &s, const gemm_operands<typename KG::W> &k, const EK &take_k,
                const gemm_operands<typename VG::W> &v, const EV &take_v)
{
	const int grid = (int)gridDim.x / 2, at = (int)blockIdx.x / 2,
	          then = (at + grid - gemm90_tile_pairs<TK>(k.n) % grid) % grid;
	int it = 0;

	gemm90_init<KG, TK>(s, k.n, k.n % TK::BOTH_M != 0);
	if (threadIdx.x < KG::PRODUCERS) {
		reg_dec<40>();
		gemm90_produce<KG, TK>(s, gemm90_tile_scheduler<KG, TK, EK>{ k, take_k, k.n }, at,
		                       it);
		gemm90_produce<VG, TV>(s, gemm90_tile_scheduler<VG, TV, EV>{ v, take_v, k.n }, then,
		                       it);
	} else {
		reg_inc<232>();
		gemm90_consume<KG, TK>(s, gemm90_tile_scheduler<KG, TK, EK>{ k, take_k, k.n }, at,
		                       it);
		gemm90_consume<VG, TV>(s, gemm90_tile_scheduler<VG, TV, EV>{ v, take_v, k.n }, then,
		                       it);
	}
	__syncwarp();
	cluster_sync(); /* the other CTA of the cluster may still arrive at barriers of this one */
}

/* Computes keys and values. Uses large tiles if these keep more than half of the clusters busy. */
template <class KG, class VG, class EK, class EV> DEV void
mla90_expand(const gemm_operands<typename KG::W> &k, const EK &take_k,
             const gemm_operands<typename VG::W> &v, const EV &take_v)
{
	SHARED_STORAGE(gemm90_shared_storage, s);
	typedef typename KG::large90 large_k;
	typedef typename VG::large90 large_v;

	if (2 * (gemm90_tile_pairs<large_k>(k.n) + gemm90_tile_pairs<large_v>(k.n)) >
	    (int)gridDim.x / 2)
		mla90_expand_by<KG, VG, large_k, large_v>(s, k, take_k, v, take_v);
	else
		mla90_expand_by<KG, VG, typename KG::middle90, typename VG::middle90>(s, k, take_k,
		                                                                      v, take_v);
}

#endif
