// One device as a card, and the CPUs of a node as cells.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useState } = preactHooks;
  const { HEALTH, amount, heldOf, part, plainModel, usesOf } = koordgate;
  const SHOWN = 3; // holders of a card before it is opened

  const classes = (...names) => names.filter(Boolean).join(" ");
  const colour = (holder) => ({ "--hue": holder.hue, "--light": holder.hue % 2 ? 0.62 : 0.72 });

  // A button that stands for a Pod wherever it holds something.
  function Holder({ holder, detail, pods }) {
    const picked = pods.picked === holder.key;
    return html`<button
      type="button"
      class=${classes("holder", pods.lit === holder.key && "lit")}
      style=${colour(holder)}
      aria-pressed=${picked}
      title=${[holder.label, detail, holder.note].filter(Boolean).join("\n")}
      onClick=${() => pods.pick(picked ? "" : holder.key)}
      onMouseEnter=${() => pods.point(holder.key)}
      onMouseLeave=${() => pods.point("")}
      onFocus=${() => pods.point(holder.key)}
      onBlur=${() => pods.point("")}
    >
      <i class=${classes("key", holder.kind)} aria-hidden="true"></i>
      <span class="name">${holder.short}</span>
      <span class="detail">${detail}</span>
    </button>`;
  }

  function Meter({ about, resource, amounts, segments }) {
    const [total, held] = amounts;
    const told = `${amount(held, resource.unit)} of ${amount(total, resource.unit)} held`;
    return html`<div class="meter">
      <span class="label">${resource.word}</span>
      <span class="number">${heldOf(amounts, resource.unit)}</span>
      <div class="bar" role="meter" aria-label=${`${about} ${resource.word}`} aria-valuemin="0" aria-valuemax="100"
        aria-valuenow=${Math.round(part(held, total))} aria-valuetext=${told}>
        ${segments.map((one) => html`<i class=${classes("share", one.lit && "lit")} style=${{ ...colour(one.holder), width: `${one.width}%` }}
          title=${`${one.holder.label}: ${amount(one.value, resource.unit)}`}></i>`)}
      </div>
    </div>`;
  }

  function Health({ one }) {
    const { word, icon, good } = HEALTH[one.health] ?? HEALTH.unread;
    return html`<span class=${classes("health", good ? "good" : "bad")}><span aria-hidden="true">${icon}</span> ${word}</span>`;
  }

  function shortId(id) {
    return /^[A-Za-z]+-[0-9a-f]{8}-/.test(id) ? id.slice(0, 12) : id;
  }

  function Card({ node, one, marked, pods }) {
    const [open, setOpen] = useState(false);
    const shown = open ? one.shares : one.shares.slice(0, SHOWN);
    const left = one.shares.length - shown.length;
    return html`<article class=${classes("card", one.look === "bad" && "away", marked && "lit")} tabindex="-1" aria-label=${`${one.name} of ${node.name}`}>
      <h3>${one.name} <${Health} one=${one} /></h3>
      <p class="quiet" title=${[one.model, one.id, one.bus].filter(Boolean).join("\n")}>${[node.mixed && plainModel(one.model), shortId(one.id)].filter(Boolean).join(" · ")}</p>
      ${one.resources.map((resource, at) => html`<${Meter} about=${one.name} resource=${resource} amounts=${one.amounts[at]}
        segments=${one.shares.map((share) => ({
          holder: node.holders[share.holder],
          lit: node.holders[share.holder].key === pods.lit,
          value: share.amounts[at],
          width: part(share.amounts[at], Math.max(one.amounts[at][0], one.amounts[at][1])),
        })).filter((segment) => segment.value > 0)} />`)}
      ${one.why && html`<p class="why">${one.why}</p>`}
      ${shown.length > 0 && html`<ul class="holders">${shown.map((share) => html`<li><${Holder} holder=${node.holders[share.holder]} pods=${pods}
        detail=${one.resources.map((resource, at) => amount(share.amounts[at], resource.unit)).join(" · ")} />
        ${usesOf(one, node.holders[share.holder]).filter((use) => open || use.bad).map((use) => html`<p class=${use.bad ? "why" : "quiet"}>${use.text}</p>`)}</li>`)}</ul>`}
      ${(left > 0 || open || (one.uses ?? []).length > 0) && html`<button type="button" class="more" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "fewer" : left > 0 ? `${left} more` : "memory"}</button>`}
    </article>`;
  }

  const POOLS = {
    lse: "own CPUs (LSE)",
    lsr: "own CPUs; best-effort Pods run there too (LSR)",
    kubelet: "own CPUs by the kubelet’s static policy",
    shared: "shared pool",
    reserved: "reserved",
  };

  function Zone({ zone, cpus, pods }) {
    const { own, shared, reserved } = zone.count;
    const title = `NUMA ${zone.numa} · socket ${zone.socket}`;
    return html`<div class="cpuzone">
      <h3>${title}</h3>
      <div class="cores" role="img" aria-label=${`${title}: ${own} CPUs belong to Pods, ${shared} are in the shared pool, ${reserved} are reserved`}>
        ${zone.cores.map((core) => html`<span class="core">${core.map((cpu) => {
          const { pool, holder } = cpus.whose.get(cpu) ?? { pool: "reserved" };
          return html`<i class=${classes("cpu", pool, holder && holder.key === pods.lit && "lit")} style=${holder ? colour(holder) : {}}
            title=${`CPU ${cpu}: ${holder ? `${holder.label}, ` : ""}${POOLS[pool]}`}>${cpu}</i>`;
        })}</span>`)}
      </div>
    </div>`;
  }

  function Cpus({ node, pods }) {
    const { cpus } = node;
    return html`<section class="cpus" aria-label=${`CPUs of ${node.name}`}>
      ${cpus.unknown && html`<p class="why">It is not known which CPUs are held, so none are given.</p>`}
      <div class="cpuzones">${cpus.zones.map((zone) => html`<${Zone} zone=${zone} cpus=${cpus} pods=${pods} />`)}</div>
      ${cpus.own.length > 0 && html`<ul class="holders wide">${cpus.own.map((one) => html`<li><${Holder} holder=${node.holders[one.holder]} pods=${pods}
        detail=${`CPUs ${one.cpus}, ${one.pool === "kubelet" ? "kubelet" : one.pool.toUpperCase()}`} /></li>`)}</ul>`}
      <ul class="legend">
        ${Object.entries(POOLS).map(([pool, text]) => html`<li><i class=${`cpu ${pool}`} aria-hidden="true"></i>${text}</li>`)}
      </ul>
    </section>`;
  }

  Object.assign(koordgate, { Card, Cpus, Holder, classes });
})();
