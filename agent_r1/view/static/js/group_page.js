// The members of a group side by side: the same task, row by row what each of them did.

import { count, foreign, h, number, signed } from "./dom.js";
import { createListKeys } from "./keyboard.js";
import { go, link } from "./router.js";
import { callOf, callout, messageOf, signOf } from "./step_card.js";
import { createShortBlocks, textBlock } from "./text_block.js";
import { memberName } from "./trajectory_page.js";
import { resultBadge } from "./trajectory_table.js";

export async function groupPage({ source, route, state }) {
  const { run: id, kind, step, group } = route.params;
  const run = state.run(id);
  const answer = await source.group(id, kind, step, group);
  const members = answer.members;
  const heads = members.map((member, i) => headOf(member, i, link("trajectory", { run: id, key: member.key }, { step, kind })));
  const most = Math.max(0, ...members.map((member) => stepsOf(member).length));
  const block = createShortBlocks(source, id);
  const rows = Array.from({ length: most }, (_, i) => rowOf(members, i, block));
  const grid = h("div", { class: "members", vars: { "--members": members.length } }, heads, rows);
  const rewards = members.map((member) => member.reward).filter(Number.isFinite);
  const taskLink = link("task", { run: id, task: answer.task_id });
  const element = h("div", { class: "page" },
    h("header", { class: "run-top" },
      h("div", { class: "run-title" }, h("h1", {}, "Group ", foreign(group))),
      h("p", { class: "run-facts" }, foreign(`${kind === "eval" ? "evaluation at" : "training"} step ${step} · task ${answer.task_id}`)),
      h("dl", { class: "figures wide" }, groupFigures(members, rewards)),
      h("nav", { class: "actions", "aria-label": "From this group" },
        h("a", { class: "button", href: taskLink, title: "Task (h)" }, "Task over training"),
        h("a", { class: "button", href: link("trajectories", { run: id }, { step, kind }) }, `All of step ${step}`),
      ),
    ),
    promptBox(answer.prompt, block),
    h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Members side by side" }, grid),
  );
  const list = createListKeys(() => heads, { onMove: (head) => head.scrollIntoView({ inline: "nearest", block: "nearest" }) });
  return {
    element,
    crumbs: [
      [run.name, link("run", { run: id })],
      ["Trajectories", link("trajectories", { run: id }, { step, kind })],
      [`Group ${group}, step ${step}`, null],
    ],
    title: `Group ${group}, step ${step}`,
    keys: { ...list.keys, enter: () => list.current()?.querySelector("a").click(), h: () => go(taskLink) },
  };
}

function stepsOf(member) {
  return member.record.steps;
}

function groupFigures(members, rewards) {
  const mean = rewards.length ? rewards.reduce((sum, value) => sum + value, 0) / rewards.length : null;
  const figures = [
    ["members", count(members.length)],
    ["solved", `${members.filter((member) => member.success >= 1).length} of ${members.length}`],
    ["mean reward", number(mean)],
    ["spread", rewards.length ? `${number(Math.min(...rewards))} to ${number(Math.max(...rewards))}` : "–"],
  ];
  return figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

/** The task of a group, or of a page about one task. */
export function promptBox(prompt, block) {
  if (!prompt?.length) return null;
  return h("section", { class: "step-card prompt-card" }, prompt.map((message) => messageOf(message, block, "", { first: 500, lines: 6 })));
}

function headOf(member, column, href) {
  return h("div", { class: column ? "member-head" : "member-head first" },
    h("a", { href }, memberName(member)),
    resultBadge(member),
    h("div", { class: "member-figures" },
      h("span", { class: signOf(member.reward) }, `reward ${number(member.reward)}`),
      h("span", {}, `${count(member.num_steps)} steps`),
      h("span", {}, `${count(member.tokens)} tokens`),
    ),
  );
}

function rowOf(members, index, block) {
  const texts = members.map((member) => stepsOf(member)[index]?.text);
  return members.map((member, column) => {
    const step = stepsOf(member)[index];
    const place = column ? "" : " first";
    if (!step) return h("div", { class: `member-step none${place}` });
    const twin = texts.indexOf(step.text);
    return h("div", { class: `member-step${place}` },
      h("div", { class: "member-step-head" },
        h("span", { class: "faint" }, `step ${index + 1}`),
        twin < column ? h("span", { class: "twin" }, `as ${memberName(members[twin])}`) : null,
        step.reward ? h("span", { class: signOf(step.reward) }, signed(step.reward)) : null,
        Number.isFinite(step.advantage) ? h("span", { class: signOf(step.advantage) }, `A ${signed(step.advantage)}`) : null,
      ),
      (step.tool_calls ?? []).length
        ? step.tool_calls.map((call) => callOf(call, block, ""))
        : h("div", { class: "member-action" }, textBlock(step.text, { className: "mono", first: 500, lines: 10 })),
      (step.repairs ?? []).map((text) => callout("repair", "Repaired", text)),
      step.parse_error ? callout("error", "Malformed", step.parse_error) : null,
      (step.results ?? []).map((result) => h("div", { class: "member-result" },
        result.content || !result.pictures ? textBlock(result.content, { first: 300, lines: 6 }) : null,
        (result.pictures ?? []).map((image) => block.picture(image)))),
    );
  });
}
