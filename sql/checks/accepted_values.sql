-- grain: one row per (capture, column_name, value)
-- Columns that stand for a choice hold one of its words, in lower case.
-- $everything boolean = false: all rows checked, instead of those that break it
with held as (
    select capture, 'token_scores.reduce' as column_name, reduce as value, ['mean', 'sum'] as accepted
    from token_scores group by all
    union all
    select capture, 'contribution_factors.token_group', token_group, ['sink', 'self', 'tail']
    from contribution_factors group by all
    union all
    select capture, 'semantic_cone.row_group', row_group, ['low_norm', 'rest'] from semantic_cone group by all
    union all
    select capture, 'semantic_cone.sink', sink, ['kept', 'zeroed'] from semantic_cone group by all
    union all
    select capture, 'masking.scope', scope, ['entry', 'token', 'row', 'layer_token'] from masking group by all
    union all
    select capture, 'masking.reduce', reduce, ['mean', 'sum', 'none'] from masking group by all
    union all
    select capture, 'masking.direction', direction, ['comprehensiveness', 'sufficiency'] from masking group by all
    union all
    select capture, 'masking.sign', sign, ['absolute', 'signed'] from masking group by all
    union all
    select capture, 'masking.score', score, score_order() from masking group by all
    union all
    select capture, 'masking.layers', layers, case when is_layers(layers) then [layers] end from masking group by all
    union all
    select capture, 'sink_removal.layers', layers, case when is_layers(layers) then [layers] end
    from sink_removal group by all
    union all
    select capture, 'pruning.strategy', strategy, strategy_order() from pruning group by all
    union all
    select capture, 'selection.ranking', ranking, ['attention', 'contribution'] from selection group by all
    union all
    select capture, 'selection.distance', distance, ['euclidean', 'cosine'] from selection group by all
    union all
    select capture, 'selection.sink', sink, ['included', 'excluded'] from selection group by all
    union all
    select capture, 'taxonomy.rule', rule, ['plurality', 'majority', 'final_query'] from taxonomy group by all
    union all
    select capture, 'taxonomy.class', class, ['retriever', 'mixer', 'reset'] from taxonomy group by all
    union all
    select capture, 'scalogram.protocol', protocol, ['exact', 'published'] from scalogram group by all
    union all
    select capture, 'scalogram.field', field, ['observed', 'uniform', 'doc_shuffle'] from scalogram group by all
    union all
    select capture, 'pod_spectrum.protocol', protocol, ['exact', 'published'] from pod_spectrum group by all
    union all
    select capture, 'pod_spectrum.field', field, ['observed', 'lag_shuffle', 'gaussian'] from pod_spectrum group by all
    union all
    select capture, 'pod_summary.protocol', protocol, ['exact', 'published'] from pod_summary group by all
    union all
    select capture, 'pod_summary.field', field, ['observed', 'lag_shuffle', 'gaussian'] from pod_summary group by all
    union all
    select capture, 'pod_modes.protocol', protocol, ['exact', 'published'] from pod_modes group by all
    union all
    select capture, 'choices.scope', scope, ['none', 'entry', 'token', 'row', 'layer_token'] from choices group by all
    union all
    select capture, 'choices.reduce', reduce, ['none', 'mean', 'sum'] from choices group by all
    union all
    select capture, 'choices.direction', direction, ['none', 'comprehensiveness', 'sufficiency']
    from choices group by all
    union all
    select capture, 'choices.sign', sign, ['none', 'absolute', 'signed'] from choices group by all
    union all
    select capture, 'choices.score', score,
        ['none', 'raw', 'vw', 'vwon', 'cw_intra', 'cw_inter', 'norm', 'alti', 'rollout', 'random']
    from choices group by all
    union all
    select capture, 'perturbation.protocol', protocol, ['exact', 'published'] from perturbation group by all
    union all
    select capture, 'perturbation.arm', arm, ['magnitude', 'angle'] from perturbation group by all
    union all
    select capture, 'perturbation.delta_kind', delta_kind, ['absolute', 'relative'] from perturbation group by all
    union all
    select capture, 'perturbation.layers', layers, case when is_layers(layers) then [layers] end from perturbation group by all
    union all
    select capture, 'perturbation.first_token', first_token, ['include', 'exclude'] from perturbation group by all
    union all
    select capture, 'displacement.protocol', protocol, ['exact', 'published'] from displacement group by all
    union all
    select capture, 'displacement.arm', arm, ['magnitude', 'angle'] from displacement group by all
    union all
    select capture, 'displacement.delta_kind', delta_kind, ['absolute', 'relative'] from displacement group by all
    union all
    select capture, 'displacement.layers', layers, case when is_layers(layers) then [layers] end from displacement group by all
    union all
    select capture, 'displacement.first_token', first_token, ['include', 'exclude'] from displacement group by all
    union all
    select capture, 'repair.protocol', protocol, ['exact', 'published'] from repair group by all
    union all
    select capture, 'repair.arm', arm, ['magnitude', 'angle'] from repair group by all
    union all
    select capture, 'repair.delta_kind', delta_kind, ['absolute', 'relative'] from repair group by all
    union all
    select capture, 'repair.layers', layers, case when is_layers(layers) then [layers] end from repair group by all
    union all
    select capture, 'repair.first_token', first_token, ['include', 'exclude'] from repair group by all
    union all
    select capture, 'propagation.protocol', protocol, ['exact', 'published'] from propagation group by all
    union all
    select capture, 'propagation.arm', arm, ['magnitude', 'angle'] from propagation group by all
    union all
    select capture, 'propagation.delta_kind', delta_kind, ['absolute', 'relative'] from propagation group by all
    union all
    select capture, 'propagation.layers', layers, case when is_layers(layers) then [layers] end from propagation group by all
    union all
    select capture, 'propagation.first_token', first_token, ['include', 'exclude'] from propagation group by all
    union all
    select capture, 'repair.target', target, ['attention_output', 'attention_weights', 'norm_output', 'mlp_output']
    from repair group by all
    union all
    select capture, 'repair.repaired_layers', repaired_layers,
        case when is_layers(repaired_layers) then [repaired_layers] end
    from repair group by all
    union all
    select capture, 'minimal_pairs.protocol', protocol, ['none', 'exact', 'published'] from minimal_pairs group by all
    union all
    select capture, 'minimal_pairs.arm', arm, ['none', 'magnitude', 'angle'] from minimal_pairs group by all
    union all
    select capture, 'minimal_pairs.pair_noise', pair_noise, ['none', 'shared', 'independent', 'published']
    from minimal_pairs group by all
    union all
    select capture, 'minimal_pairs.delta_kind', delta_kind, ['none', 'absolute', 'relative']
    from minimal_pairs group by all
    union all
    select capture, 'minimal_pairs.first_token', first_token, ['none', 'include', 'exclude']
    from minimal_pairs group by all
    union all
    select capture, 'minimal_pairs.layers', layers, case when layers = 'none' or is_layers(layers) then [layers] end
    from minimal_pairs group by all
    union all
    select capture, 'probes.target', target, ['pos', 'depth'] from probes group by all
    union all
    select capture, 'probes.feature', feature, ['direction', 'magnitude', 'both'] from probes group by all
    union all
    select capture, 'probes.metric', metric, ['accuracy', 'r2'] from probes group by all
    union all
    select capture, 'stages.status', status, ['done', 'stale', 'partial', 'failed'] from stages group by all
    union all
    select capture, 'captures.value_dtype', value_dtype, ['float32', 'float16', 'bfloat16', 'none']
    from captures group by all
    union all
    select capture, 'captures.compute_dtype', compute_dtype, ['float32', 'float16', 'bfloat16']
    from captures group by all
    union all
    select capture, 'captures.norm', norm, ['layernorm', 'rmsnorm'] from captures group by all
    union all
    select capture, 'captures.attention_storage', attention_storage, ['stored', 'rebuilt', 'none']
    from captures group by all
    union all
    select capture, 'captures.bos_policy', bos_policy, ['auto', 'always', 'never'] from captures group by all
),
measured as (
    select capture, column_name, value, (not coalesce(list_contains(accepted, value), false))::integer as error,
        0 as tolerance
    from held
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
